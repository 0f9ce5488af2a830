"""What of a module is state, under names that do not depend on how the module is wrapped."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ....errors import UsageError

_WRAPPER = "_orig_mod."  # torch.compile puts it into the names of what it wraps


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside of torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), torch.nn.Module):
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Tied parameters once, under their first name."""
    return {name.replace(_WRAPPER, ""): parameter for name, parameter in module.named_parameters()}


def named_buffers(module: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, str]]:
    """Where each buffer is, the unsaved ones too: its module and its name in there. Shared buffers once."""
    found: dict[str, tuple[torch.nn.Module, str]] = {}
    seen: set[int] = set()
    for path, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{path}.{key}".lstrip(".").replace(_WRAPPER, "")] = (owner, key)
    return found


def saved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that belong to the module's state_dict."""
    return {
        name: buffer
        for name, (owner, key) in named_buffers(module).items()
        if key not in owner._non_persistent_buffers_set and (buffer := owner._buffers[key]) is not None
    }


def with_extra_state(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that have state beside tensors, of which only they know."""
    return {
        path.replace(_WRAPPER, ""): owner
        for path, owner in module.named_modules()
        if type(owner).get_extra_state is not torch.nn.Module.get_extra_state
    }


def check(name: str, module: torch.nn.Module) -> None:
    """UsageError for a module whose state cannot be copied as bytes."""
    for path, parameter in module.named_parameters():
        what = f"{name} parameter {path!r}"
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError(f"{what} has no shape yet: pass one batch through the lazy module before joining")
        if parameter.device.type == "meta":
            raise UsageError(f"{what} is on the meta device: give the module memory (to_empty) before joining")
        wrapped: bool = is_traceable_wrapper_subclass(parameter)
        if wrapped or parameter.layout is not torch.strided:
            raise UsageError(
                f"{what} is a {type(parameter.data).__name__} with layout {parameter.layout}: only ordinary tensors "
                "are replicated; sharded models (FSDP, DTensor) are not, each member holds the whole state"
            )
