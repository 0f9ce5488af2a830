"""Training that goes on in the same processes when workers come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...common.elastic import ObjectState, State, run_fn
from .sampler import ElasticSampler
from .state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

T = TypeVar("T")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates the training function, whose first argument is a state. It is called again after each change."""
    return run_fn(func)
