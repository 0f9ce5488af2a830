"""Optimizers that apply nothing that the members have not agreed on.

Torch's have a hook for that; of Keras's, `apply` is put behind a question of the job's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...errors import UsageError

NOT_AGREED = (
    "an optimizer was to apply gradients that the members have not agreed on: each would train on its own part. Put the step"
    " into `with job.step():`, and apply what job.average_gradients returns"
)


def ask_before_applying(optimizer: Any, may_apply: Callable[[], bool]) -> None:
    """From here on `optimizer.apply`, by which `apply_gradients` works too, raises `UsageError` where it may not."""
    if not hasattr(optimizer, "apply"):
        return
    original = optimizer.apply

    def apply(gradients: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        if not may_apply():
            raise UsageError(NOT_AGREED)
        return original(gradients, *arguments, **options)

    # Past Keras's tracking of attributes, which is for what belongs to the optimizer's state.
    object.__setattr__(optimizer, "apply", apply)


def graphs_around() -> list[Any]:
    """The graph that is being built, and those around it."""
    graph, found = tf.compat.v1.get_default_graph(), []
    while graph is not None:
        found.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return found
