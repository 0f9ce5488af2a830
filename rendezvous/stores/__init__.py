"""Where decisions live: the interface, and its implementations."""
