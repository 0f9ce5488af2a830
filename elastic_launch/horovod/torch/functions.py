"""Making parameters, optimizers and objects those of one rank."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..objects import allgather_object, broadcast_object
from .mpi_ops import broadcast_async_, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


class _Hole:
    """Where a tensor was in a state that is sent without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """In place. `params` is what `state_dict()`, `named_parameters()` or `parameters()` of a module gives."""
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(
            f"parameters are a {type(params).__name__}: give model.state_dict() or model.named_parameters()"
        )
    handles = [broadcast_async_(tensor, root_rank, name) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """The state of the rank `root_rank`, whatever the others have: they need not have made a step yet.

    `model` is not needed: nothing has to be known of sparse parameters.
    """
    from ..world import current

    is_root = current().place.rank == root_rank
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    skeleton = broadcast_object(_without_tensors(state, tensors) if is_root else None, root_rank)
    if not is_root:
        tensors = []
        state = _with_rooms(skeleton, tensors)
    handles = [broadcast_async_(tensor, root_rank, f"optimizer_state.{index}") for index, tensor in enumerate(tensors)]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(state)


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Hole(value)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(each, tensors) for each in value)
    return value


def _with_rooms(value: Any, rooms: list[torch.Tensor]) -> Any:
    if isinstance(value, _Hole):
        rooms.append(torch.empty(value.shape, dtype=value.dtype))
        return rooms[-1]
    if isinstance(value, dict):
        return {key: _with_rooms(each, rooms) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_rooms(each, rooms) for each in value)
    return copy.copy(value)
