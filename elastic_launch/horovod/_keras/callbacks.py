"""Keras callbacks that keep the members alike, and rates and metrics in step with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .. import arrays, world
from ..basics import rank, size
from ..collectives import Average
from ..common.exceptions import NotOfferedError
from ..tensorflow.functions import broadcast_variables

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback", "LearningRateWarmupCallback",
    "MetricAverageCallback",
]  # fmt: skip


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """After the first batch, by which all variables are made, they become those of `root_rank`.

    Again after each change of the members: those that join do it for the first time, and nobody can alone.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._done_in = 0  # the newest generation
        given = local_variables if isinstance(local_variables, (list, tuple, set)) else [local_variables]
        self._local: list[Any] = [each for each in given if each is not None]

    def register_local_var(self, var: Any) -> None:
        """This one stays each worker's own."""
        self._local.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        generation = world.current().generation
        if self._done_in == generation:
            return
        variables = [*self.model.weights, *self.model.optimizer.variables]
        shared = [variable for variable in variables if not any(variable is local for local in self._local)]
        broadcast_variables(shared, self.root_rank)
        self._done_in = generation

    @property
    def broadcast_done(self) -> bool:
        return self._done_in > 0

    on_train_batch_end = on_batch_end


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """At an epoch's end the metrics become their means over the members: put it in front of what looks at them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        means = arrays.reduce_all([np.array([logs[name] for name in names], np.float64)], Average, 1.0, 1.0, "metrics")[
            0
        ]
        for name, mean in zip(names, means, strict=True):
            logs[name] = float(mean)


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """From `start_epoch` to `end_epoch` the rate is `initial_lr` times `multiplier`, a number to the power of the epoch, or a
    function of it; with `staircase` as of an epoch's beginning, else as of each batch's.

    The momentum is not corrected: Keras 3 has made it a constant of its graph.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__} cannot know how many steps an epoch has: give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase:
            if batch == 0:
                self._set_rate(self.current_epoch)
        else:
            assert self.steps_per_epoch is not None
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set_rate(self, epoch: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From `initial_lr` / size to `initial_lr` in `warmup_epochs` (Goyal et al. 2017, arXiv:1706.02677)."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            reached = epoch + 1.0 / self.steps_per_epoch  # so that an epoch ends at a round number
            return (reached * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotOfferedError(
            "BestModelCheckpoint is for Horovod's Spark estimators, which set its path: use keras.callbacks.ModelCheckpoint"
        )
