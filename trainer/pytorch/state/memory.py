"""Tensors as bytes: what a tensor looks like in a copy, and its memory without a copy of it.

On the wire a tensor's bytes are in *wire order*: that of the sender's memory where the tensor is dense (which includes
channels_last), else the order of its elements. A receiver whose tensor lies in memory in the same way receives straight
into it; only another layout costs it a second tensor of that size.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

_DTYPES = {str(value)[6:]: value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class TensorSpec(NamedTuple):
    """`order`: dimensions from slowest to fastest in memory, empty for the usual order; `device`: the type of it."""

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] = ()
    device: str = "cpu"

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        name = str(tensor.dtype)[6:]
        return TensorSpec(tuple(tensor.shape), name, _memory_order(tensor) or (), tensor.device.type)

    @staticmethod
    def from_plain(plain: list[object]) -> TensorSpec:
        shape, dtype, order, device = plain
        assert isinstance(shape, list) and isinstance(order, list)
        return TensorSpec(tuple(shape), str(dtype), tuple(order), str(device))

    @property
    def nbytes(self) -> int:
        count = _DTYPES[self.dtype].itemsize
        for size in self.shape:
            count *= size
        return count

    @property
    def layout(self) -> list[object]:
        return [self.shape, self.dtype, self.order]

    def fits(self, tensor: torch.Tensor) -> bool:
        return tuple(tensor.shape) == self.shape and str(tensor.dtype)[6:] == self.dtype

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """A tensor of this kind whose memory is in wire order; its content is undefined."""
        order = self.order or tuple(range(len(self.shape)))
        lying = torch.empty([self.shape[d] for d in order], dtype=_DTYPES[self.dtype], device=device)
        return lying.permute([order.index(d) for d in range(len(order))])

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


def wire_view(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor | None:
    """`tensor` as one row of bytes in wire order, sharing its memory; None if its memory lies in another way."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    lying = tensor.detach().permute(order) if order else tensor.detach()
    return lying.reshape(-1).view(torch.uint8) if lying.is_contiguous() else None


def gathered(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A copy of `tensor`'s bytes in wire order."""
    lying = tensor.detach().resolve_conj().resolve_neg()
    lying = lying.permute(order) if order else lying
    return lying.contiguous().reshape(-1).view(torch.uint8)


def scatter(row: torch.Tensor, tensor: torch.Tensor, order: tuple[int, ...]) -> None:
    """The reverse of `gathered`: puts the bytes of `row` into `tensor`."""
    lying = tensor.detach().permute(order) if order else tensor.detach()
    lying.copy_(row.view(tensor.dtype).view(lying.shape))


def cpu_bytes(row: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable, without a copy; it keeps the tensor alive. Needs no numpy."""
    if row.nbytes == 0:
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * row.nbytes).from_address(row.data_ptr())
    array.tensor = row  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share their memory, as in an expanded tensor, so that it cannot be written to."""
    return any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from slowest to fastest; () for the usual order, None if the tensor is not dense."""
    if tensor.is_contiguous():
        return ()
    steps = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-steps[d], d)))
    return order if tensor.permute(order).is_contiguous() else None
