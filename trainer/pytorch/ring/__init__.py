"""The communicator of one generation for torch's tensors: how it is formed, guarded, aborted and buried."""
