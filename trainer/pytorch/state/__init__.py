"""How torch's modules, optimizers and tensors are replicated."""
