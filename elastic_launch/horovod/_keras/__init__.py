"""What `horovod.keras` and `horovod.tensorflow.keras` have in common, which is all: Keras 3 is one."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from .. import arrays
from ..collectives import Average, reduction_of
from ..tensorflow.bridge import array_of
from ..tensorflow.compression import Compression
from ..tensorflow.optimizer import distributed
from ..tensorflow.tape import variables_of_layers

__all__ = ["PartialDistributedOptimizer", "allgather", "allreduce", "broadcast", "load_model", "reducescatter"]


def PartialDistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Average, groups: Any = None, process_set: Any = None, local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """The gradients of `local_layers` are each worker's own."""
    options = {} if process_set is None else {"process_set": process_set}
    made = distributed(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        scale_local_gradients=scale_local_gradients,
        **options,
    )
    for variable in variables_of_layers(local_layers):
        made.register_local_var(variable)
    return made


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: int | None = None, compression: Any = Compression.none,
) -> Any:  # fmt: skip
    """A number, an array or a tensor, as an array. It is not compressed."""
    chosen = reduction_of(op, average)
    return arrays.reduce_all([_array(value)], chosen, prescale_factor, postscale_factor, name)[0]


def allgather(value: Any, name: str | None = None) -> Any:
    """Everybody's rows, by rank."""
    return arrays.gather_all([_array(value)], name)[0]


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    return arrays.give_all([_array(value)], root_rank, name)[0]


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This worker's rows of everybody's value joined into one."""
    return arrays.scatter_all([_array(value)], op, 1.0, 1.0, name)[0]


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None, compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:  # fmt: skip
    """A saved model, with its optimizer made a distributed one."""
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        distributed(model.optimizer, compression=compression)
    return model


def _array(value: Any) -> Any:
    found = array_of(value)
    return found.astype(np.float32) if isinstance(value, float) else found
