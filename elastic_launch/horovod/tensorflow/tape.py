"""`DistributedGradientTape`: what it gives is the same on all members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..collectives import Average
from ..common.process_sets import ProcessSet, check_global, global_process_set
from .compression import Compression
from .gradients import GradientReducer


class _DistributedGradientTape:
    """A tape, with its gradients reduced. Whatever else is asked of it, the tape itself answers."""

    def __init__(self, tape: Any, reducer: GradientReducer) -> None:
        self._tape = tape
        self._reducer = reducer

    def __enter__(self) -> _DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is this worker's own."""
        self._reducer.keep_local(source)

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any
    ) -> Any:
        found = self._tape.gradient(target, sources, output_gradients, **options)
        flat, variables = tf.nest.flatten(found), tf.nest.flatten(sources)
        return tf.nest.pack_sequence_as(sources, self._reducer.reduce(flat, variables))

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """This worker's gradients, and those of all."""
        local = self._tape.gradient(target, sources, output_gradients)
        return list(local), self._reducer.reduce(local, sources)


def DistributedGradientTape(
    gradtape: Any, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
    sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
    groups: Any = None, process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """`tape = DistributedGradientTape(tape)` behind the tape's block, or in front of it. All gradients are one group."""
    check_global(process_set)
    reducer = GradientReducer(
        compression, sparse_as_dense, op, gradient_predivide_factor, scale_local_gradients, "DistributedGradientTape"
    )
    return _DistributedGradientTape(gradtape, reducer)


def PartialDistributedGradientTape(
    gradtape: Any, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
    sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
    groups: Any = None, process_set: ProcessSet = global_process_set, local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """The gradients of `local_layers` are each worker's own."""
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of_layers(layers: Any) -> list[Any]:
    """As a tape is asked for them: a Keras variable, and the TensorFlow variable in it."""
    if layers is None:
        return []
    found = layers if isinstance(layers, (list, tuple, set)) else [layers]
    variables = [variable for layer in found for variable in layer.trainable_weights]
    return variables + [
        variable.value for variable in variables if hasattr(variable, "value") and hasattr(variable, "path")
    ]
