"""Horovod's API for Keras, on this package's ring."""

from __future__ import annotations

from typing import Any

from .._keras import PartialDistributedOptimizer, allgather, allreduce, broadcast, load_model, reducescatter
from ..collectives import Average
from ..tensorflow.compression import Compression
from ..tensorflow.mpi_ops import (
    Adasum,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
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
from ..tensorflow.optimizer import distributed
from ..tensorflow.refused import broadcast_global_variables
from . import callbacks, elastic

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "Sum", "allgather",
    "allreduce", "broadcast", "broadcast_global_variables", "callbacks", "ccl_built", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_initialized",
    "load_model", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
    "reducescatter", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Average, num_groups: int = 0, groups: Any = None,
) -> Any:  # fmt: skip
    """`optimizer` itself, made one that reduces the gradients. All of them are one group."""
    return distributed(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
    )
