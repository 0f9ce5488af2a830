"""`elastic.join`: make this process a worker of its job, with the framework that what it is given belongs to."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..errors import UsageError
from . import control as control_line
from .job import BaseJob
from .shield import raise_shield

if TYPE_CHECKING:
    import torch

    from .checkpoint import Checkpoints
    from .pytorch.job import Job as TorchJob
    from .tensorflow.job import Job as TensorFlowJob

J = TypeVar("J", bound=BaseJob)

_control: control_line.Control | None = None
_job: BaseJob | None = None


def current_job() -> BaseJob | None:
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
        _job.wait_until_closed(5.0)


def enter(
    make: Callable[[control_line.Control, Checkpoints | None], J],
    checkpoint: str | None = None,
    checkpoint_every: int = 100,
    checkpoint_keep: int = 2,
) -> J:
    """Make this process a worker of its job, which `make` makes. Raises `UsageError` if it is one already."""
    global _control, _job
    if _job is not None:
        raise UsageError("this process has joined a job already: elastic.join is called once")
    raise_shield()
    _control = _control or control_line.from_environment()
    checkpoints = None
    if checkpoint is not None:
        from .checkpoint import Checkpoints

        checkpoints = Checkpoints(checkpoint, keep=checkpoint_keep, every_steps=checkpoint_every)
    if isinstance(_control, control_line.SoloControl):
        atexit.register(_end_solo)
    job = make(_control, checkpoints)
    _job = job
    return job


@overload
def join(
    model: torch.nn.Module | Mapping[str, torch.nn.Module],
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
) -> TorchJob: ...


@overload
def join(
    model: Any = None,
    optimizer: Any = None,
    *,
    variables: Mapping[str, Any] | Sequence[Any] | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
    checkpoint_every: int = 100,
    checkpoint_keep: int = 2,
    bucket_cap_mb: float = 25,
) -> TensorFlowJob: ...


def join(
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    *,
    variables: Mapping[str, Any] | Sequence[Any] | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
    checkpoint_every: int = 100,
    checkpoint_keep: int = 2,
    find_unused_parameters: bool = False,
    bucket_cap_mb: float = 25,
) -> Any:
    """Make this process a worker of its job, or a job of one where no agent started it.

    With PyTorch: `model` is a module or a dict of modules, `optimizer` an optimizer, or a dict or list of them;
    `find_unused_parameters` and `bucket_cap_mb` are DDP's. With TensorFlow: `variables` (or `model`, a `tf.Module` or
    Keras model) and `optimizer` (Keras's) are what is replicated.

    Every member must give the same structure: names, shapes and types. The state itself comes from the job when it runs
    already; of a new job, rank 0's initial state counts. Nothing is waited for here: the worker is counted from its first
    use of the job on (its rank, an epoch, a batch, a step).

    `checkpoint` is a directory for the last resort: written every `checkpoint_every` steps beside the training, read only
    when no worker holds the state any more.
    """
    keep = (checkpoint, checkpoint_every, checkpoint_keep)
    if variables is not None or _is_of_tensorflow(model) or _is_of_tensorflow(optimizer):
        from .tensorflow.joining import maker as tensorflow_maker

        if scheduler is not None or scaler is not None:
            raise UsageError(
                "scheduler= and scaler= are PyTorch's: give a Keras optimizer its learning rate as a schedule, and wrap it "
                "into a LossScaleOptimizer; their state is the optimizer's"
            )
        return enter(tensorflow_maker(model, variables, optimizer, seed, bucket_cap_mb), *keep)
    from .pytorch.joining import maker

    ddp_options = {"find_unused_parameters": find_unused_parameters, "bucket_cap_mb": bucket_cap_mb}
    return enter(maker(model, optimizer, scheduler, scaler, seed, ddp_options), *keep)


def _is_of_tensorflow(given: Any) -> bool:
    """Whether it, or its first item, is TensorFlow's or, with Keras on TensorFlow, Keras's."""
    if isinstance(given, Mapping):
        given = next(iter(given.values()), None)
    elif isinstance(given, (list, tuple)):
        given = given[0] if given else None
    roots = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    return "tensorflow" in roots or ("keras" in roots and sys.modules["keras"].backend.backend() == "tensorflow")
