"""`DistributedOptimizer` of a Keras optimizer: it reduces the gradients that it is given to apply."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from ..collectives import Average, Sum
from ..common.exceptions import NotOfferedError
from ..common.process_sets import ProcessSet, check_global, global_process_set
from .compression import Compression
from .gradients import Accumulator, GradientReducer


class CallableList(list[Any]):
    """`optimizer.variables` of Keras 3, and `optimizer.variables()` of the scripts that are older."""

    def __call__(self) -> CallableList:
        return self


class _DistributedOptimizer:
    """What a class of the user's optimizer is given in addition."""

    _horovod_reducer: GradientReducer
    _horovod_accumulator: Accumulator | None

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is this worker's own."""
        self._horovod_reducer.keep_local(var)

    @property
    def variables(self) -> CallableList:
        return CallableList(super().variables)  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = list(trainable_variables) if trainable_variables is not None else self._trainable_variables  # type: ignore[attr-defined]
        beneath = super().apply  # type: ignore[misc]
        if self._horovod_accumulator is None:
            return beneath(self._horovod_reducer.reduce(grads, variables), trainable_variables)
        if not self.built:  # type: ignore[attr-defined]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]
        given = [index for index, gradient in enumerate(grads) if gradient is not None]
        is_time, sums = self._horovod_accumulator.add([grads[index] for index in given])

        def step() -> Any:
            for index, gradient in zip(given, sums, strict=True):
                grads[index] = gradient
            beneath(self._horovod_reducer.reduce(grads, variables), trainable_variables)
            return tf.constant(True)

        if tf.executing_eagerly():
            return step() if bool(is_time) else None
        tf.cond(is_time, step, lambda: tf.constant(False))
        return None


def distributed(
    optimizer: Any,
    *,
    name: str | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The same optimizer, with its state and its class's name, as one that reduces."""
    check_global(process_set)
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise NotOfferedError(
            f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}: give one of Keras"
            " (tf.keras.optimizers); those of TensorFlow 1 are not offered"
        )
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer is distributed already")
    original = type(optimizer)
    attributes = {"__module__": original.__module__, "__doc__": original.__doc__}
    optimizer.__class__ = type(original.__name__, (_DistributedOptimizer, original), attributes)
    optimizer._horovod_reducer = GradientReducer(
        compression, sparse_as_dense, op, gradient_predivide_factor, scale_local_gradients, name
    )
    passes = backward_passes_per_step
    optimizer._horovod_accumulator = Accumulator(passes, average_aggregated_gradients) if passes > 1 else None
    return optimizer


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, use_locking: bool = False, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, backward_passes_per_step: int = 1, op: int = Average,
    gradient_predivide_factor: float = 1.0, average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """For a Keras optimizer. All gradients are one group, whatever `groups` says."""
    if num_groups:
        warnings.warn("num_groups is called groups", DeprecationWarning, stacklevel=2)
    return distributed(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
