"""The communicator of one generation: how it is formed, guarded, aborted and buried."""
