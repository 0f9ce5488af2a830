"""Training that goes on in the same processes when workers come and go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from .. import arrays, world
from ..basics import rank
from ..common.elastic import ObjectState, State, run_fn
from .bridge import array_of, translated
from .functions import _refuse_session, broadcast_object

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

T = TypeVar("T")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates the training function, whose first argument is a state. It is called again after each change."""

    @functools.wraps(func)
    def translating(state: Any, *args: Any, **kwargs: Any) -> T:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            raise translated(error) from error

    return run_fn(translating)


class _VariablesState(ObjectState):
    """Variables, kept as arrays, beside plain values."""

    def _variables(self) -> Sequence[Any]:
        raise NotImplementedError()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        self._assign(self._saved_variables)
        super().restore()

    def sync(self) -> None:
        values = [array_of(variable) for variable in self._variables()]
        self._assign(arrays.give_all(values, world.current().source(), "elastic.variables"))
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._saved_variables = [array_of(variable).copy() for variable in self._variables()]

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables(), values, strict=False):
            variable.assign(value)


class TensorFlowKerasState(_VariablesState):
    """A Keras model and its optimizer. `backend` is for Horovod's sake."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.optimizer = optimizer or model.optimizer
        self.backend = backend
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def _variables(self) -> Sequence[Any]:
        """The model's weights and what its optimizer has for them, which all members make before their first step."""
        optimizer = self.optimizer
        if optimizer is None:
            return list(self.model.weights)
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        return [*self.model.weights, *optimizer.variables]


class TensorFlowState(_VariablesState):
    """A list of variables. `session` is of TensorFlow 1, and refused."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        _refuse_session(session)
        if not variables:
            raise ValueError("give variables=[...]: TensorFlow 2 keeps no list of all variables")
        self.variables = list(variables)
        self.session = None
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def _variables(self) -> Sequence[Any]:
        return self.variables
