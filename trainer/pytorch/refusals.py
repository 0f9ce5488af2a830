"""What cannot be trained elastically, each refused with the way out."""

from __future__ import annotations

import torch

from ...errors import UsageError


def check_model(name: str, module: torch.nn.Module) -> None:
    """Raise `UsageError` for modules that are spread over the workers or wrapped already."""
    for path, part in module.named_modules():
        kind = type(part).__name__
        where = f"model {name!r}" + (f" at {path!r}" if path else "")
        if kind in ("FullyShardedDataParallel", "FSDPModule") or "fully_shard" in type(part).__module__:
            raise UsageError(
                f"{where} is sharded with FSDP: no survivor would hold a lost worker's shard. Give elastic.join the plain "
                "model; it is replicated on every worker"
            )
        if kind in ("DistributedDataParallel", "DataParallel"):
            raise UsageError(
                f"{where} is wrapped in {kind} already: give elastic.join the plain module, it wraps it itself"
            )
    for path, parameter in module.named_parameters():
        if type(parameter).__name__ == "DTensor" or hasattr(parameter, "device_mesh"):
            raise UsageError(
                f"parameter {path!r} of model {name!r} is a DTensor (FSDP or tensor parallelism): give elastic.join the "
                "plain model; it is replicated on every worker"
            )
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError(
                f"parameter {path!r} of model {name!r} has no shape yet: run one forward pass on a sample before elastic.join"
            )


def check_optimizer(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` for optimizers that evaluate the model several times in one step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            f"optimizer {name!r} is LBFGS, which runs backward several times inside one step, so that no common point "
            "exists at which all workers hold the same gradients: use a first-order optimizer (SGD, Adam, AdamW, ...)"
        )
