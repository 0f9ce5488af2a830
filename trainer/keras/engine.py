"""What fit needs of a Keras backend: compute a step without leaving a trace, pack it for the ring, apply it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import keras
import numpy.typing as npt

from ...errors import UsageError
from . import refusals
from .roles import Roles

Arrays = list[npt.NDArray[Any]]

SHARE, COUNTED, FIRST = range(3)


@dataclass
class Results:
    """What one step of one member, or summed of all members, does to the variables. Lists of the backend's tensors.

    `gradients` are those of the loss, not yet applied; `tables` those that touch some rows of a variable (embeddings): rows'
    values and rows' numbers, in turn, of one after the other. Where a step runs eagerly, a gradient that is missing is zero, and
    the last of the `gradients` tells by a 1 for each variable which ones are there: members may take different branches of a
    model, and what nobody has is not applied. `metrics`, `floats` and `counters` are changes of the variables of
    these roles, `logs` the step's own scalars where the model has a `train_step` of its own. `local` are the new values of
    what each member moves by itself.
    """

    tables: list[Any]
    gradients: list[Any]
    metrics: list[Any]
    floats: list[Any]
    counters: list[Any]
    logs: list[Any]
    local: list[Any]

    def lists(self) -> list[list[Any]]:
        return [getattr(self, field.name) for field in fields(self)]

    def exchanged(self) -> list[list[Any]]:
        """What is summed: all but `tables` and `local`."""
        return self.lists()[1:-1]

    def replaced(self, tables: list[Any], exchanged: list[list[Any]]) -> Results:
        """With other tables, and other lists in the place of those of `exchanged`."""
        gradients, metrics, floats, counters, logs = exchanged
        return Results(tables, gradients, metrics, floats, counters, logs, self.local)


@dataclass(frozen=True)
class Share:
    """This member's part of a step: its `rank`, and how much of the global batch it computed (0 for a stand-in sample)."""

    rank: int
    weight: float

    def weights(self) -> list[float]:
        """Indexed by SHARE (means over samples), COUNTED (sums over samples) and FIRST (as on rank 0)."""
        return [self.weight, float(self.weight > 0), float(self.rank == 0)]


class Engine(ABC):
    """One model on one backend. `build` comes first.

    `knows_batch_size`: whether a step is run, or compiled, for one size of the batch, so that a loss's parts can be weighted
    with it.
    """

    knows_batch_size = True

    def __init__(self, model: keras.Model) -> None:
        refusals.check_model(model)
        self.model = model
        self.optimizer = model.optimizer
        self.has_own_train_step = type(model).train_step is not keras.Model.train_step or "train_step" in vars(model)
        self.log_names: list[str] = []
        self.roles = Roles()

    def build(self, batch: Any) -> None:
        """Make all variables, of which none may come later. `batch` is a structure of KerasTensors."""
        self.model._symbolic_build(data_batch=batch)
        if not self.optimizer.built:
            self.optimizer.build(self.model.trainable_variables)
        self.roles = Roles.of(self.model)
        refusals.check_variables(self.model)

    @abstractmethod
    def prepare(self, batch: Any) -> None:
        """Compile what can be compiled before the worker is counted. `batch` as in `build`."""

    @abstractmethod
    def compute(self, batch: Any, rank: int) -> Results:
        """Forward, loss, backward and metrics on `batch`; the model and its optimizer stay as they were."""

    @abstractmethod
    def pack(self, results: Results, share: Share) -> tuple[Arrays, Arrays]:
        """The results weighted with this member's share, so that their sums over the members are those of the global batch.

        And beside these sums the tables, of which every member needs the rows of all, one's behind the other's.
        """

    @abstractmethod
    def unpack(self, sums: Arrays, tables: Arrays, own: Results) -> Results:
        """The results of all; from `own` comes what is not exchanged."""

    @abstractmethod
    def apply(self, results: Results) -> dict[str, Any]:
        """Change the variables; returns the metrics' results, and the step's own scalars."""

    @abstractmethod
    def test(self, batch: Any) -> Arrays:
        """The changes of the metrics' variables by an evaluation of `batch`; the model stays as it was."""

    @abstractmethod
    def add_to_metrics(self, changes: Arrays) -> None:
        """Change the metrics' variables."""

    def set_training(self, training: bool) -> None:
        """Switch layers that look at the mode of their module, on the backend that has one."""

    def metrics_result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.model.get_metrics_result()
        return result

    def own_logs(self, logs: Any) -> list[Any]:
        """The scalars that the model's own train_step returned, in the order of `log_names`."""
        if not self.has_own_train_step:
            return []
        scalars = keras.tree.map_structure(lambda value: keras.ops.cast(value, "float32"), dict(logs))
        if any(len(value.shape) > 0 for value in scalars.values()):
            raise UsageError(
                "the model's train_step must return a dictionary of scalars, which are averaged over the members"
            )
        self.log_names = list(scalars)
        return list(scalars.values())

    def weight_kinds(self, lists: list[list[Any]]) -> list[list[int]]:
        """For each exchanged value, by which of `Share.weights` it counts."""
        by_role = [SHARE, COUNTED, SHARE, FIRST, SHARE]
        kinds = [[kind] * len(tensors) for kind, tensors in zip(by_role, lists, strict=True)]
        if not self.knows_batch_size:
            kinds[1] = [SHARE if i in self.roles.share_weighted else kind for i, kind in enumerate(kinds[1])]
        return kinds

    def merge_logs(self, results: dict[str, Any], logs: list[Any]) -> dict[str, Any]:
        """What a step's hooks are given: the metrics' results, and what the model's own train_step returned beside them."""
        if not self.has_own_train_step:
            return results
        own = dict(zip(self.log_names, logs, strict=True))
        return {name: results.get(name, value) for name, value in own.items()}


def engine_for(model: keras.Model) -> Engine:
    """The engine of the backend that Keras runs on."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from .tensorflow_engine import TensorFlowEngine

        return TensorFlowEngine(model)
    if backend == "torch":
        from .torch_engine import TorchEngine

        return TorchEngine(model)
    raise UsageError(
        f"elastic_launch.keras runs on Keras's backends tensorflow and torch, not on {backend}: set KERAS_BACKEND"
    )
