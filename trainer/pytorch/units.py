"""An evaluation and a reduced value over the members, for torch's modules and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from ...errors import RingError, UsageError
from ..member import Member
from ..ring.ring import Ring
from ..units import agree, share_of
from .ring.ring import TorchRing

MeansOfBatch = Callable[[torch.nn.Module, Any], Mapping[str, Any]]

_OPERATIONS = {
    "sum": torch.distributed.ReduceOp.SUM,
    "mean": torch.distributed.ReduceOp.SUM,
    "min": torch.distributed.ReduceOp.MIN,
    "max": torch.distributed.ReduceOp.MAX,
}


def allreduce(member: Member, value: Any, operation: str) -> Any:
    """`value` (a number or a tensor) reduced over the members; a float for a number, else a new tensor like `value`."""
    if operation not in _OPERATIONS:
        raise UsageError(f"job.allreduce knows the operations {', '.join(_OPERATIONS)}, not {operation!r}")
    is_tensor = isinstance(value, torch.Tensor)
    source = value.detach() if is_tensor else torch.tensor(float(value), dtype=torch.float64)

    def compute(ring: Ring) -> bytes:
        local = source.cpu().contiguous().clone()
        assert isinstance(ring, TorchRing)
        ring.reduce(local, _OPERATIONS[operation])
        if operation == "mean":
            local = local / ring.world_size
        dtype = local.dtype
        if dtype == torch.bfloat16:
            local = local.float()
        return local.numpy().tobytes() + b"|" + str(local.dtype).removeprefix("torch.").encode()

    data, _, kind = agree(member, compute).rpartition(b"|")
    result = torch.frombuffer(bytearray(data), dtype=getattr(torch, kind.decode())).reshape(source.shape)
    if not is_tensor:
        return float(result)
    return result.to(device=source.device, dtype=source.dtype if operation != "mean" else None)


def evaluate(
    member: Member,
    module: torch.nn.Module,
    dataset: Any,
    means: MeansOfBatch,
    batch_size: int,
    collate: Callable[..., Any],
) -> dict[str, float]:
    """The exact means over `dataset` of what `means(module, batch)` gives as means over each batch's samples."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            "job.evaluate needs a dataset with a length and access by index: wrap a stream in a list of samples"
        )

    def compute(ring: Ring) -> bytes:
        member.state.replica.share_buffers(ring, 0)
        sums, count = _sums(module, dataset, means, batch_size, collate, ring)
        parts = [msgspec.msgpack.decode(part) for part in ring.gather_bytes(msgspec.msgpack.encode([sums, count]))]
        total = sum(part[1] for part in parts)
        names = list(dict.fromkeys(name for part in parts for name in part[0]))
        merged = {name: sum(part[0].get(name, 0.0) for part in parts) / max(total, 1) for name in names}
        return msgspec.msgpack.encode(merged)

    result: dict[str, float] = msgspec.msgpack.decode(agree(member, compute))
    return result


def _sums(
    module: torch.nn.Module, dataset: Any, means: MeansOfBatch, batch_size: int, collate: Callable[..., Any], ring: Ring
) -> tuple[dict[str, float], int]:
    was_training = module.training
    module.eval()
    sums: dict[str, float] = {}
    count = 0
    try:
        with torch.no_grad():
            for indices in share_of(len(dataset), ring.rank, ring.world_size, batch_size):
                if ring.guard.broken is not None:
                    raise RingError(ring.guard.broken)
                values = means(module, collate([dataset[index] for index in indices]))
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * len(indices)
                count += len(indices)
    finally:
        module.train(was_training)
    return sums, count
