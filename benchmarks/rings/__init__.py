"""The rings that carry CPU tensors, side by side."""
