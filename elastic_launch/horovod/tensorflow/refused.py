"""What belongs to TensorFlow 1, or to Horovod's inside: names that are there to say what to use instead."""

from __future__ import annotations

from typing import Any

from ..common.exceptions import NotOfferedError

_OF_1 = "belongs to sessions of TensorFlow 1, which are not offered"


def broadcast_global_variables(root_rank: int) -> Any:
    raise NotOfferedError(f"broadcast_global_variables {_OF_1}: use broadcast_variables(model.variables, root_rank)")


class BroadcastGlobalVariablesHook:
    def __init__(self, root_rank: int, device: str = "") -> None:
        raise NotOfferedError(
            f"BroadcastGlobalVariablesHook {_OF_1}: use broadcast_variables, or the callback of horovod.keras"
        )


class LocalGradientAggregationHelper:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotOfferedError(
            "LocalGradientAggregationHelper is of Horovod's inside: give backward_passes_per_step to DistributedOptimizer"
        )
