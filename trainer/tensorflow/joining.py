"""What of `elastic.join` is TensorFlow's: a job for variables and Keras optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ..control import Control
from .job import Job
from .variables import by_path

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints


def maker(
    model: Any, variables: Any, optimizer: Any, seed: int, bucket_cap_mb: float
) -> Callable[[Control, Checkpoints | None], Job]:
    """What makes the job. Raises `UsageError` if something given is of the wrong kind, or has no variables yet."""
    models = {}
    for name, each in _named("model", model).items():
        models[name] = by_path(name, getattr(each, "variables", None))
    if variables is not None:
        given = variables.values() if isinstance(variables, Mapping) else variables
        names = list(variables) if isinstance(variables, Mapping) else None
        models["variables"] = by_path("variables", given, names)
    if not models:
        raise UsageError("elastic.join needs what is to be replicated: elastic.join(variables=..., optimizer=...)")
    optimizers = _named("optimizer", optimizer)
    trained = [variable for each in models.values() for variable in each.values() if variable.trainable]
    for name, each in optimizers.items():
        _build(name, each, trained, alone=len(optimizers) == 1)

    def make(control: Control, checkpoints: Checkpoints | None) -> Job:
        return Job(control, models, optimizers, seed, round(bucket_cap_mb * 2**20), checkpoints)

    return make


def _named(kind: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {f"{kind}/{name}" if kind != "model" else str(name): value for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return {f"{kind}/{number}": value for number, value in enumerate(given)}
    return {kind: given}


def _build(name: str, optimizer: Any, trained: list[Any], alone: bool) -> None:
    """A joiner receives the optimizer's variables: they have to be there."""
    if not hasattr(optimizer, "variables"):
        raise UsageError(f"{name} is a {type(optimizer).__name__}, which has no variables: give a Keras optimizer")
    if getattr(optimizer, "built", True):
        return
    if not alone:
        raise UsageError(f"{name} is not built: call its build() with the variables that it trains before elastic.join")
    optimizer.build(trained)
