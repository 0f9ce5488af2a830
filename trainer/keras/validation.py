"""Validation as one agreement of all members: each takes every n-th batch, and the metrics' changes are summed.

So its results are those of one worker that has seen all batches, on every member. If the ring breaks in it, those that are
left do it again.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import UsageError
from .callbacks import Callbacks
from .engine import Arrays, Engine
from .sources import Source


class UnitRing(Protocol):
    """What an evaluation needs of the ring that it is done in."""

    rank: int
    world_size: int

    def gather_bytes(self, data: bytes) -> list[bytes]: ...

    def check_usable(self) -> None: ...


class Validation:
    """`steps`: how many batches, None for all. `frequency`: every so many epochs, or the epochs, counted from 1."""

    def __init__(
        self, source: Source, steps: int | None, frequency: int | list[int], engine: Engine, callbacks: Callbacks
    ) -> None:
        if steps is None and source.batches is None and getattr(source, "is_endless", True):
            raise UsageError("the validation data has no end: say validation_steps=")
        self._source = source
        self._steps = steps
        self._frequency = frequency
        self._engine = engine
        self._callbacks = callbacks
        self._sizes = [int(np.prod(variable.shape)) for variable in engine.roles.metrics]

    def is_due(self, epoch: int) -> bool:
        """`epoch` counts from 0."""
        if isinstance(self._frequency, int):
            return (epoch + 1) % self._frequency == 0
        return epoch + 1 in self._frequency

    def run(self, job: Any) -> dict[str, float]:
        hooks, model = self._callbacks.hooks, self._engine.model
        hooks.on_test_begin()
        sums = np.frombuffer(job.unit(self._sums), np.float64)
        model.reset_metrics()
        self._engine.add_to_metrics(self._cut(sums))
        logs = {name: float(value) for name, value in self._engine.metrics_result().items()}
        hooks.on_test_end(logs)
        return logs

    def _sums(self, ring: UnitRing) -> bytes:
        """The sums over all batches of what each changes in the metrics' variables, flat."""
        listening = self._callbacks.listens_to_test_batches
        self._engine.model.reset_metrics()
        sums = np.zeros(sum(self._sizes))
        first = 0
        while self._has(first):
            ring.check_usable()
            own = self._changes(first + ring.rank)
            if listening:
                own = self._tell(ring, first, own)
            sums += own
            first += ring.world_size
        if not listening:
            sums = sum(map(_decode, ring.gather_bytes(sums.tobytes())), np.zeros_like(sums))
        return sums.tobytes()

    def _tell(self, ring: UnitRing, first: int, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Call the hooks of a round's batches with the metrics behind each; returns the sum of the round's changes."""
        hooks = self._callbacks.hooks
        together = np.zeros_like(own)
        for number, data in enumerate(ring.gather_bytes(own.tobytes()), first):
            if not self._has(number):
                break
            changes = _decode(data)
            together += changes
            hooks.on_test_batch_begin(number)
            self._engine.add_to_metrics(self._cut(changes))
            hooks.on_test_batch_end(number, self._engine.metrics_result())
        return together

    def _has(self, number: int) -> bool:
        return (self._steps is None or number < self._steps) and self._source.has(0, number)

    def _changes(self, number: int) -> npt.NDArray[np.float64]:
        if not self._has(number):
            return np.zeros(sum(self._sizes))
        batch = self._source.part(0, number, 0, self._source.rows(0, number))
        changes = self._engine.test(batch)
        return np.concatenate([np.ravel(change).astype(np.float64) for change in changes] or [np.zeros(0)])

    def _cut(self, flat: npt.NDArray[np.float64]) -> Arrays:
        pieces = np.split(flat, np.cumsum(self._sizes)[:-1]) if self._sizes else []
        return [
            piece.reshape(tuple(variable.shape))
            for piece, variable in zip(pieces, self._engine.roles.metrics, strict=True)
        ]


def _decode(data: bytes) -> npt.NDArray[np.float64]:
    return np.frombuffer(data, np.float64)
