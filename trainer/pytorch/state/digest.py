"""A digest of a state: xxh3 over its plain data and over the bytes of its tensors, without a copy of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash

from ...state.tree import pack
from .memory import TensorSpec, cpu_bytes

CHUNK = 8 << 20


def digest_of(meta: bytes, tensors: Sequence[torch.Tensor]) -> str:
    """32 hex digits. Where tensors lie (device, strides) does not count; shape, type and every bit of them does."""
    hasher = xxhash.xxh3_128(meta)
    for tensor in tensors:
        spec = TensorSpec.of(tensor)
        hasher.update(pack([spec.shape, spec.dtype]))
        row = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        if row.device.type == "cpu":
            hasher.update(cpu_bytes(row))
        else:
            for start in range(0, row.nbytes, CHUNK):
                hasher.update(cpu_bytes(row[start : start + CHUNK].cpu()))
    return hasher.hexdigest()
