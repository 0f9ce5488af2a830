"""Elastic training with PyTorch: the job, the model around DDP, the ring over gloo and NCCL, the replica of tensors."""
