"""Reducing a list of gradients: as one group, with those left out that are this worker's own, or that nobody has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .. import arrays, world
from ..basics import size
from ..collectives import Average
from .bridge import on_arrays
from .mpi_ops import grouped_allreduce


class GradientReducer:
    """How the gradients of one tape or optimizer are reduced. `local` holds the ids of variables whose gradients stay here.

    Gradients of such are divided by the number of workers, as if the others' had been zero, unless `scale_local` is off.
    """

    def __init__(
        self,
        compression: Any,
        sparse_as_dense: bool,
        op: int,
        predivide: float = 1.0,
        scale_local: bool = True,
        name: str | None = None,
    ) -> None:
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is for op=Average alone")
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = predivide
        self._scale_local = scale_local
        self._name = name
        self._local: list[Any] = []

    def keep_local(self, variable: Any) -> None:
        self._local.append(variable)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """None stays None: on all members, since they have the same model."""
        results = list(gradients)
        shared = []
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self._is_local(variable):
                results[index] = _divided_by_size(gradient) if self._scale_local else gradient
                continue
            if self._sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                results[index] = tf.convert_to_tensor(gradient)
            shared.append(index)
        given = [results[index] for index in shared]
        factors: dict[str, Any] = {}
        if self._predivide != 1.0:
            factors = {"prescale_factor": 1.0 / self._predivide, "postscale_factor": self._predivide}
        reduced = grouped_allreduce(given, op=self._op, compression=self._compression, name=self._name, **factors)
        for index, gradient in zip(shared, reduced, strict=True):
            results[index] = gradient
        return results

    def _is_local(self, variable: Any) -> bool:
        return any(variable is each for each in self._local)


def _divided_by_size(gradient: Any) -> Any:
    """By that of the moment at which a graph runs."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided_by_size(gradient.values), gradient.indices, gradient.dense_shape)

    def call(array: Any) -> list[Any]:
        return [arrays.scaled(array, 1.0 / size())]

    return on_arrays(call, [gradient], [gradient.dtype], [gradient.shape])[0]


class Accumulator:
    """Gradients of several backward passes, summed in this process's memory until it is time to reduce them.

    All members begin to count anew with each generation: those that join have nothing, and must reduce when the others do.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        self._sums: list[Any] = []
        self._count = 0
        self._generation = 0

    def add(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Whether it is time, and the gradients then."""

        def call(*given: Any) -> list[Any]:
            if self._generation != world.current().generation:
                self._generation = world.current().generation
                self.forget()
            fits = len(self._sums) == len(given)
            self._sums = (
                [a + b for a, b in zip(self._sums, given, strict=True)] if fits else [np.array(g) for g in given]
            )
            self._count += 1
            found, is_time = self._sums, self._count >= self._passes
            if is_time:
                if self._average:
                    found = [arrays.scaled(each, 1.0 / self._passes) for each in found]
                self.forget()
            return [np.bool_(is_time), *found]

        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        dtypes, shapes = [each.dtype for each in dense], [each.shape for each in dense]
        is_time, *sums = on_arrays(call, dense, [tf.bool, *dtypes], [(), *shapes])
        return is_time, sums

    def forget(self) -> None:
        self._sums, self._count = [], 0
