"""`elastic.join`: make this process a worker of its job."""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import UsageError
from . import control as control_line
from .job import Job
from .ring import undertaker
from .shield import raise_shield

_control: control_line.Control | None = None
_job: Job | None = None


def current_job() -> Job | None:
    """The job that this process has joined, if any."""
    return _job


def leave() -> None:
    """The process is about to exit in order."""
    if _control is not None:
        _control.close()


def _end_solo() -> None:
    """No thread of gloo's may be left when the interpreter is finalised: it would end the process with SIGABRT."""
    if _job is not None:
        _job.close()
        undertaker.wait_until_done(5.0)


def join(
    model: torch.nn.Module | Mapping[str, torch.nn.Module] | None = None,
    optimizer: torch.optim.Optimizer
    | Mapping[str, torch.optim.Optimizer]
    | Sequence[torch.optim.Optimizer]
    | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    *,
    seed: int = 0,
    checkpoint: str | None = None,
    checkpoint_every: int = 100,
    checkpoint_keep: int = 2,
    find_unused_parameters: bool = False,
    bucket_cap_mb: float = 25,
) -> Job:
    """Make this process a worker of its job, or a job of one where no agent started it.

    Every member must give the same structure: names, shapes and types. The state itself comes from the job when it runs
    already; of a new job, rank 0's initial state counts. Nothing is waited for here: the worker is counted from its first
    use of the job on (its rank, an epoch, a batch, a step).

    `checkpoint` is a directory for the last resort: written every `checkpoint_every` steps beside the training, read only
    when no worker holds the state any more. `find_unused_parameters` and `bucket_cap_mb` are DDP's.
    """
    global _control, _job
    if _job is not None:
        raise UsageError("this process has joined a job already: elastic.join is called once")
    models = _named("model", model, torch.nn.Module)
    optimizers = _named("optimizer", optimizer, torch.optim.Optimizer)
    if not models:
        raise UsageError("elastic.join needs a model: elastic.join(model=..., optimizer=...)")
    others = _named("scheduler", scheduler, None) | _named("scaler", scaler, None)
    importlib.import_module("torch._dynamo")  # every optimizer imports it at its first step, which takes seconds

    raise_shield()
    _control = _control or control_line.from_environment()
    checkpoints = None
    if checkpoint is not None:
        from .checkpoint import Checkpoints

        checkpoints = Checkpoints(checkpoint, keep=checkpoint_keep, every_steps=checkpoint_every)
    ddp_options = {"find_unused_parameters": find_unused_parameters, "bucket_cap_mb": bucket_cap_mb}
    if isinstance(_control, control_line.SoloControl):
        atexit.register(_end_solo)
    _job = Job(_control, models, optimizers, others, seed, ddp_options, checkpoints)
    return _job


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
