"""Sums of TensorFlow's tensors where they are, on the GPU: torch's NCCL carries them, and DLPack makes one framework's tensors
the other's without a copy. For workers that have torch installed; it is never imported here."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import tensorflow as tf

from ..ring.fusing import BUCKET
from ..ring.tcp.buffers import ALIGNMENT


class TorchRing(Protocol):
    """A ring of torch's tensors, whose `start_sum` is in place."""

    def start_sum(self, tensor: Any) -> Any: ...

    def settle_reductions(self) -> None:
        """Wait for all sums. Raises `RingError` if one did not end well."""
        ...


class GpuSums:
    """The sums over all members of `weight` times each tensor, as tensors of TensorFlow; small ones share a bucket."""

    def __init__(self, ring: TorchRing, weight: float, bucket: int = BUCKET, device: str = "GPU:0") -> None:
        self._torch: Any = sys.modules["torch"]
        self._ring = ring
        self._weight = weight
        self._bucket = bucket
        self._device = device
        self._waiting: dict[Any, list[tuple[int, Any]]] = {}
        self._results: list[Any] = []
        tf.test.experimental.sync_devices()  # torch's streams do not wait for TensorFlow's

    def add(self, array: Any) -> None:
        with tf.device(self._device):
            capsule = tf.experimental.dlpack.to_dlpack(tf.identity(array))
        tensor = self._torch.utils.dlpack.from_dlpack(capsule)
        waiting = self._waiting.setdefault(tensor.dtype, [])
        waiting.append((len(self._results), tensor))
        self._results.append(None)
        if sum(each.nbytes for _, each in waiting) >= self._bucket:
            self._start(self._waiting.pop(tensor.dtype))

    def finish(self) -> list[Any]:
        for tensors in self._waiting.values():
            self._start(tensors)
        self._waiting.clear()
        self._ring.settle_reductions()
        capsules = [self._torch.utils.dlpack.to_dlpack(result) for result in self._results]
        return [tf.experimental.dlpack.from_dlpack(capsule) for capsule in capsules]

    def _start(self, tensors: list[tuple[int, Any]]) -> None:
        """Reduce them in memory of their own, since TensorFlow's tensors never change."""
        first = tensors[0][1]
        unit = ALIGNMENT // first.element_size()
        lengths = [-(-tensor.numel() // unit) * unit for _, tensor in tensors]
        room = self._torch.zeros(sum(lengths), dtype=first.dtype, device=first.device)
        for (index, tensor), part in zip(tensors, room.split(lengths), strict=True):
            self._results[index] = part[: tensor.numel()].view(tensor.shape)
            if self._weight:  # what does not count may be anything, and 0 times that need not be 0
                self._results[index].copy_(tensor)
        room.mul_(self._weight)
        self._ring.start_sum(room)
