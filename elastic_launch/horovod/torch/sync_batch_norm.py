"""Batch norm whose statistics are over the samples of all members."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..basics import size
from ..collectives import Sum
from .mpi_ops import allreduce


class SyncBatchNorm(_BatchNorm):
    """As torch's, of any number of dimensions from 2 on, on the CPU too. A member may have fewer samples than another."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if size() == 1 or (not self.training and self.track_running_stats):
            return super().forward(input)
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        dimensions = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        values = input.float()
        own_count = values.new_tensor([values.numel() / values.shape[1]])
        together = allreduce(torch.cat([values.sum(dimensions), own_count]), op=Sum)
        sums, count = together[:-1], together[-1].detach()
        mean = sums / count
        centred = values - mean.reshape(shape)
        variance = allreduce(centred.square().sum(dimensions), op=Sum) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normed = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            normed = normed * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normed.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        if self.momentum is None:
            assert self.num_batches_tracked is not None
            weight = 1.0 / float(self.num_batches_tracked)
        else:
            weight = self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)
