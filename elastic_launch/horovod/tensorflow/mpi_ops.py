"""The collectives under Horovod's names and with its arguments. Gradients go back through them.

Devices that are named (`device_dense`, `device_sparse`) do not count: the ring carries the CPU's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .. import arrays, collectives, world
from ..basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)  # fmt: skip
from ..collectives import Adasum, Average, Max, Min, Product, Sum
from ..common.process_sets import (
    ProcessSet,
    add_process_set,
    check_global,
    global_process_set,
    remove_process_set,
)
from .bridge import array_of, on_arrays
from .compression import Compression

__all__ = [
    "Adasum", "Average", "Compression", "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather",
    "allreduce", "alltoall", "broadcast", "broadcast_", "ccl_built", "check_num_rank_power_of_2", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "handle_average_backwards_compatibility", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_rank_op", "local_size", "local_size_op", "mpi_built", "mpi_enabled", "mpi_threads_supported",
    "nccl_built", "process_set_included_op", "rank", "rank_op", "reducescatter", "remove_process_set", "rocm_built",
    "shutdown", "size", "size_op", "start_timeline", "stop_timeline",
]  # fmt: skip

handle_average_backwards_compatibility = collectives.reduction_of


def check_num_rank_power_of_2(num_rank: int) -> bool:
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def _reduced(
    tensors: Sequence[Any], op: int, prescale_factor: float, postscale_factor: float, name: str | None
) -> list[Any]:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*inputs: Any) -> Any:
        def call(*given: Any) -> list[Any]:
            return arrays.reduce_all(given, op, prescale_factor, postscale_factor, name)

        results = on_arrays(call, inputs, [each.dtype for each in inputs], [each.shape for each in inputs])

        def backward(*gradients: Any) -> Any:
            return _reduced(gradients, op, prescale_factor, postscale_factor, None)

        return results, backward

    found = reduce(*[tf.convert_to_tensor(tensor) for tensor in tensors])
    return list(found) if isinstance(found, (list, tuple)) else [found]


def allreduce(
    tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    name: str | None = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
) -> Any:  # fmt: skip
    """Everybody's `tensor` joined into one; of `tf.IndexedSlices`, everybody's slices. Average if no `op` is given."""
    return grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor, process_set,
        ignore_name_scope, name,
    )[0]  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False, name: str | None = None,
) -> list[Any]:  # fmt: skip
    check_global(process_set)
    op = collectives.reduction_of(op, average)
    results: list[Any] = list(tensors)
    sparse = [index for index, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [index for index in range(len(tensors)) if index not in sparse]
    if sparse:
        if op not in (Sum, Average) or prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError(
                "tf.IndexedSlices are reduced with op=Sum or Average, and without factors: use sparse_as_dense=True for others"
            )
        for index, gathered in zip(sparse, _joined_slices([tensors[i] for i in sparse], op, name), strict=True):
            results[index] = gathered
    if dense:
        compressed = [compression.compress(tf.convert_to_tensor(tensors[index])) for index in dense]
        reduced = _reduced([tensor for tensor, _ in compressed], op, prescale_factor, postscale_factor, name)
        for index, tensor, (_, ctx) in zip(dense, reduced, compressed, strict=True):
            results[index] = compression.decompress(tensor, ctx)
    return results


def _joined_slices(slices: Sequence[Any], op: int, name: str | None) -> list[Any]:
    parts = [part for each in slices for part in (each.values, each.indices)]

    def call(*given: Any) -> list[Any]:
        gathered = arrays.gather_all(given, f"{name}.slices" if name else None)
        factor = 1.0 / size() if op == Average else 1.0
        return [each if index % 2 else arrays.scaled(each, factor) for index, each in enumerate(gathered)]

    found = on_arrays(call, parts, [part.dtype for part in parts], [(None, *part.shape[1:]) for part in parts])
    pairs = zip(found[::2], found[1::2], slices, strict=True)
    return [tf.IndexedSlices(values, indices, dense_shape=each.dense_shape) for values, indices, each in pairs]


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Everybody's rows, by rank, in one tensor; the numbers of rows may differ."""
    check_global(process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(given: Any) -> Any:
        [result] = on_arrays(
            lambda array: arrays.gather_all([array], name), [given], [given.dtype], [(None, *given.shape[1:])]
        )

        def backward(gradient: Any) -> Any:
            def mine(array: Any, rows: Any) -> list[Any]:
                [mean] = arrays.reduce_all([array], Average, 1.0, 1.0, None)
                [counts] = arrays.gather_all([np.array([rows])], None)
                start = int(counts[: rank()].sum())
                return [mean[start : start + int(rows)]]

            return on_arrays(mine, [gradient, tf.shape(given)[0]], [given.dtype], [given.shape])[0]

        return result, backward

    return gather(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    return [
        allgather(tensor, f"{name}.{index}" if name else None, ignore_name_scope, process_set)
        for index, tensor in enumerate(tensors)
    ]


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """The tensor of `root_rank`."""
    check_global(process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def give(given: Any) -> Any:
        [result] = on_arrays(
            lambda array: arrays.give_all([array], root_rank, name), [given], [given.dtype], [given.shape]
        )

        def backward(gradient: Any) -> Any:
            def mine(array: Any) -> list[Any]:
                [mean] = arrays.reduce_all([array], Average, 1.0, 1.0, None)
                return [mean if rank() == root_rank else mean * 0]

            return on_arrays(mine, [gradient], [given.dtype], [given.shape])[0]

        return result, backward

    return give(tf.convert_to_tensor(tensor))


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Sequence[Any]:
    """The values of `root_rank`, in place. Eager."""
    check_global(process_set)
    values = arrays.give_all([array_of(variable) for variable in variables], root_rank, name)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return variables


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Rows to each rank, as many as `splits` says. What came, and with `splits` also how many rows from each rank."""
    check_global(process_set)

    def exchanged(given: Any, parts: Any) -> list[Any]:
        shapes = [(None, *given.shape[1:]), (None,)]
        return on_arrays(
            lambda array, of_each: arrays.exchange(array, of_each.tolist(), name),
            [given, parts],
            [given.dtype, tf.int32],
            shapes,
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchange(given: Any) -> Any:
        parts = tf.zeros([0], tf.int32) if splits is None else tf.cast(splits, tf.int32)
        result, received = exchanged(given, parts)
        return (result, received), lambda gradient, _=None: exchanged(gradient, received)[0]

    result, received = exchange(tf.convert_to_tensor(tensor))
    return result if splits is None else (result, received)


def reducescatter(
    tensor: Any, device_dense: str = "", compression: Any = Compression.none, op: int = Average, name: str | None = None,
    process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:  # fmt: skip
    """This worker's rows of everybody's `tensor` joined into one; the first ranks have one more if they do not go up."""
    check_global(process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scatter(given: Any) -> Any:
        [result] = on_arrays(
            lambda array: arrays.scatter_all([array], op, prescale_factor, postscale_factor, name),
            [given],
            [given.dtype],
            [(None, *given.shape[1:])],
        )

        def backward(gradient: Any) -> Any:
            def everybodys(array: Any) -> list[Any]:
                factor = prescale_factor * postscale_factor * (size() if op == Sum else 1)
                return arrays.gather_all([arrays.scaled(array, factor)], None)

            return on_arrays(everybodys, [gradient], [given.dtype], [given.shape])[0]

        return result, backward

    compressed, ctx = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(scatter(compressed), ctx)


def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Any]:  # fmt: skip
    return [
        reducescatter(
            tensor, device_dense, compression, op, None, process_set, False, prescale_factor, postscale_factor
        )
        for tensor in tensors
    ]


def join() -> int:
    """This worker has no more data: give zeros to the others' reductions until all have joined. The rank that did so last."""
    return collectives.join(world.current().engine)


def _number(call: Any) -> Any:
    return on_arrays(lambda: [np.int32(call())], [], [tf.int32], [()])[0]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The size at the moment at which a graph runs."""
    return _number(size)


def local_size_op(name: str | None = None) -> Any:
    return _number(local_size)


def rank_op(name: str | None = None) -> Any:
    return _number(rank)


def local_rank_op(name: str | None = None) -> Any:
    return _number(local_rank)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return _number(lambda: 1)
