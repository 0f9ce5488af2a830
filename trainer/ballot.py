"""What the members tell each other in the vote of a step: one small vector, summed over the ring.

The metrics of `job.log` ride in it, so that their exact means over members and samples cost no collective of their own.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import UsageError
from .ring.ring import Vector

MAX_METRICS = 16
_CHANGE, _STOP, _VOTERS, _NAMERS, _NAMES, _NAMES_SQUARED, _RATES, _RATES_SQUARED, _METRICS = range(9)
_SIZE = _METRICS + 2 * MAX_METRICS

Sums = dict[str, tuple[float, float]]
"""By name: the sum of weight times value, and the sum of weights."""


class Ballot:
    """One member's vote, or after the sum everybody's. `vector` is float64, of a fixed length."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector

    @staticmethod
    def cast(
        change: bool,
        stop: bool,
        metrics: Mapping[str, tuple[float, float]],
        learning_rates: Sequence[float] = (),
        abstains: bool = False,
    ) -> Ballot:
        """`abstains`: this member has no metrics yet, as it was not there when the others logged theirs."""
        if len(metrics) > MAX_METRICS:
            raise UsageError(f"job.log takes at most {MAX_METRICS} metrics a step, not {len(metrics)}")
        names = sorted(metrics)
        values = [float(change), float(stop), 1.0, float(not abstains)]
        of_names = 0.0 if abstains else _fingerprint("\n".join(names))
        for fingerprint in (of_names, _fingerprint(repr(learning_rates))):
            values += [fingerprint, fingerprint * fingerprint]
        for name in names:
            values += metrics[name]
        values += [0.0] * (_SIZE - len(values))
        return Ballot(np.array(values, np.float64))

    @staticmethod
    def from_bytes(data: bytes) -> Ballot:
        return Ballot(np.frombuffer(data, np.float64).copy())

    def to_bytes(self) -> bytes:
        return self.vector.tobytes()

    @property
    def change_wanted(self) -> bool:
        return float(self.vector[_CHANGE]) > 0

    @property
    def stop_wanted(self) -> bool:
        return float(self.vector[_STOP]) > 0

    def check_learning_rates(self) -> None:
        """Raise `UsageError`, on every member, if the members' optimizers have different learning rates."""
        if not self._all_equal(_VOTERS, _RATES, _RATES_SQUARED):
            raise UsageError(
                "the members' learning rates differ: code behind a block also runs where the block was unwound, on some "
                "members only. Call scheduler.step() inside the block, behind optimizer.step(), or look at step.committed"
            )

    def _all_equal(self, voters: int, sums: int, squares: int) -> bool:
        values = self.vector.tolist()
        return math.isclose(values[squares] * values[voters], values[sums] ** 2, rel_tol=1e-12, abs_tol=0.5)

    def means(self, names: list[str]) -> dict[str, float]:
        """The means by name (sorted), NaN where nobody gave a sample. Raises `UsageError` if the members' names differ."""
        values = self.vector.tolist()
        if not self._all_equal(_NAMERS, _NAMES, _NAMES_SQUARED):
            raise UsageError(
                f"job.log was called with other names on some member (here: {names or 'none'}); every member must log the "
                "same names in a step, also those that only rank 0 prints"
            )
        means = {}
        for index, name in enumerate(names):
            total, weight = values[_METRICS + 2 * index : _METRICS + 2 * index + 2]
            means[name] = total / weight if weight else math.nan
        return means


def _fingerprint(text: str) -> float:
    return float(zlib.crc32(text.encode()) % 1_000_003)


def join_ballots(ballots: list[bytes]) -> bytes:
    """The sum of ballots that could not be summed over their ring."""
    total = Ballot.from_bytes(ballots[0])
    for data in ballots[1:]:
        total.vector += Ballot.from_bytes(data).vector
    return total.to_bytes()
