"""Elastic data-parallel training: workers come and go, the training goes on.

    import elastic_launch as elastic

    job = elastic.join(model=model, optimizer=optimizer)

Importing this package imports no framework; `join` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    CheckpointError,
    ElasticError,
    RendezvousError,
    RingError,
    StaleGroupError,
    StateMismatchError,
    UsageError,
)

if TYPE_CHECKING:
    from .trainer.data.sampler import ElasticSampler
    from .trainer.joining import join
    from .trainer.member import Change
    from .trainer.pytorch.job import Job

__version__ = "0.1.0"

__all__ = [
    "Change",
    "CheckpointError",
    "ElasticError",
    "ElasticSampler",
    "Job",
    "RendezvousError",
    "RingError",
    "StaleGroupError",
    "StateMismatchError",
    "UsageError",
    "join",
]

_LAZY = {
    "Change": ".trainer.member",
    "ElasticSampler": ".trainer.data.sampler",
    "Job": ".trainer.pytorch.job",
    "join": ".trainer.joining",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
