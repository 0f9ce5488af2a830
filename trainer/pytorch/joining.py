"""What of `elastic.join` is torch's: a job for modules and optimizers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...errors import UsageError
from ..control import Control
from .job import Job

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints


def maker(
    model: Any, optimizer: Any, scheduler: Any, scaler: Any, seed: int, ddp_options: dict[str, Any]
) -> Callable[[Control, Checkpoints | None], Job]:
    """What makes the job. Raises `UsageError` if something given is of the wrong kind."""
    models = _named("model", model, torch.nn.Module)
    optimizers = _named("optimizer", optimizer, torch.optim.Optimizer)
    if not models:
        raise UsageError("elastic.join needs a model: elastic.join(model=..., optimizer=...)")
    others = _named("scheduler", scheduler, None) | _named("scaler", scaler, None)
    importlib.import_module("torch._dynamo")  # every optimizer imports it at its first step, which takes seconds

    def make(control: Control, checkpoints: Checkpoints | None) -> Job:
        return Job(control, models, optimizers, others, seed, ddp_options, checkpoints)

    return make


def _named(kind: str, given: Any, accepted: type | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        named = {f"{kind}/{name}" if kind != "model" else str(name): value for name, value in given.items()}
    elif isinstance(given, (list, tuple)):
        named = {f"{kind}/{index}": value for index, value in enumerate(given)}
    else:
        named = {kind: given}
    for name, value in named.items():
        if accepted is not None and not isinstance(value, accepted):
            raise UsageError(f"{name} is a {type(value).__name__}, not a torch {accepted.__name__}")
    return named
