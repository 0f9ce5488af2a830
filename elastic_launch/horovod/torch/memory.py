"""Tensors as memory that the ring can carry, and back. What is not dense CPU memory is copied to such, and the result back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def for_ring(tensor: torch.Tensor) -> torch.Tensor:
    """Its own memory if it is dense, and on the CPU; else a copy."""
    if tensor.layout is not torch.strided:
        raise ValueError("a sparse tensor is reduced by sparse_allreduce_async, or as tensor.to_dense()")
    return tensor.detach().cpu().contiguous()


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are the same memory, in the same order."""
    return one.data_ptr() == other.data_ptr() and one.device == other.device and other.is_contiguous()


def scale_(tensor: torch.Tensor, factor: float) -> None:
    """In place. Integers are scaled as float64, and lose what is behind the point."""
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point:
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double() * factor)


def of_elements(elements: Any, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """The ring's flat result as a tensor of the type, and on the device, of `like`."""
    flat = torch.from_numpy(elements)
    if flat.dtype != like.dtype:
        flat = flat.view(like.dtype)  # bfloat16, which numpy knows as the bits
    return flat.reshape(tuple(shape)).to(like.device)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
