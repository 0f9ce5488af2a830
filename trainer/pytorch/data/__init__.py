"""How samples are fetched for torch: a loader with the processes of a DataLoader."""
