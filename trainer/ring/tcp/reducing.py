"""Sums and the like of large arrays: twice around the ring, in small pieces that follow one another.

The array is cut into as many parts as there are members. Each part starts at the member behind its owner and goes round
once: every member adds its own numbers to what comes in, piece by piece, and passes it on; the last one, the owner, has the
result. In an all-reduce the results go round once more. Each number is thus computed once, in an order that follows from
its place alone, so all members have the same bits, in every run.

Nothing is sent from memory that could change before it has been sent: a result can come back to a member only after the
partial result that it is made from has left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arithmetic import Arithmetic
from .buffers import Array, as_bytes
from .heading import SIZE, Heading
from .lanes import Lanes

_PIECES = 8  # of a part: while one is computed, others are on their way
_LEAST, _MOST = 256 * 1024, 4 * 1024 * 1024  # bytes of one; each costs a wait, which is long where the machine is busy
_BLOCK = 8 * 1024 * 1024  # elements of 16 bits, whose partial results need memory of their own

Parts = Sequence[tuple[int, int]]
"""By rank of the owner: the first of its elements, and the one behind its last."""


def even_parts(count: int, members: int) -> Parts:
    """`count` elements in parts that differ by one at most."""
    bounds = [count * index // members for index in range(members + 1)]
    return [(bounds[index], bounds[index + 1]) for index in range(members)]


def allreduce(
    lanes: Lanes, rank: int, size: int, heading: Heading, arithmetic: Arithmetic, source: Array, result: Array
) -> None:
    """`result` may be `source`, or lie elsewhere; it also holds the partial results, where they have its type."""
    step = _BLOCK if arithmetic.is_widened else max(source.size, 1)
    for start in range(0, source.size, step):
        own, total = source[start : start + step], result[start : start + step]
        partial = np.empty(own.size, np.float32) if arithmetic.is_widened else total
        circle = _Circle(lanes, rank, size, arithmetic, even_parts(own.size, size), own, partial)
        if start == 0:
            circle.greet(heading)
        circle.reduce(total, pass_on=True)
        circle.pass_round(total)
        lanes.move()


def reduce_scatter(
    lanes: Lanes,
    rank: int,
    size: int,
    heading: Heading,
    arithmetic: Arithmetic,
    source: Array,
    parts: Parts,
    result: Array,
) -> None:
    """`result` is of this member's part alone; `source` does not change."""
    partial = np.empty(source.size, np.dtype(arithmetic.partial_dtype))
    circle = _Circle(lanes, rank, size, arithmetic, parts, source, partial)
    circle.greet(heading)
    circle.reduce(result, pass_on=False)
    lanes.move()


@dataclass(frozen=True)
class _Circle:
    """One array on its way round the ring. What is queued here is moved by the caller."""

    lanes: Lanes
    rank: int
    size: int
    arithmetic: Arithmetic
    parts: Parts
    source: Array
    partial: Array

    def greet(self, heading: Heading) -> None:
        head = bytearray(SIZE)
        previous = (self.rank - 1) % self.size
        self.lanes.next.send(heading.pack())
        self.lanes.previous.receive(memoryview(head), lambda: _ignore(heading.check(head, previous)))

    def reduce(self, result: Array, pass_on: bool) -> None:
        """Once around. `result` is the whole array, of which this member's part is filled, or that part alone."""
        skip = 0 if result.size == self.source.size else self.parts[self.rank][0]
        longest = max(self._step(owner) for owner in range(self.size))
        came = np.empty(longest, self.partial.dtype)
        widened = np.empty(longest if self.arithmetic.is_widened else 0, np.float32)

        def start(low: int, high: int) -> None:
            own = self.arithmetic.widen(self.source[low:high], self.partial[low:high])
            self.lanes.next.send(as_bytes(own))

        def join(low: int, high: int, is_last: bool) -> None:
            own = self.arithmetic.widen(self.source[low:high], widened[: high - low])
            partial = self.partial[low:high]
            self.arithmetic.join(came[: high - low], own, partial)
            if not is_last:
                self.lanes.next.send(as_bytes(partial))
                return
            total = result[low - skip : high - skip]
            self.arithmetic.finish(partial, total)
            if pass_on:
                self.lanes.next.send(as_bytes(total))

        for low, high in self._pieces((self.rank - 1) % self.size):
            start(low, high)
        for step in range(2, self.size + 1):
            for low, high in self._pieces((self.rank - step) % self.size):
                self.lanes.previous.receive(
                    as_bytes(came[: high - low]),
                    lambda low=low, high=high, is_last=step == self.size: join(low, high, is_last),  # type: ignore[misc]
                )

    def pass_round(self, result: Array) -> None:
        """The other members' finished parts, each passed on until it is back at its owner's."""
        for step in range(1, self.size):
            for low, high in self._pieces((self.rank - step) % self.size):
                piece = as_bytes(result[low:high])
                is_last = step == self.size - 1
                self.lanes.previous.receive(
                    piece,
                    None if is_last else lambda piece=piece: self.lanes.next.send(piece),  # type: ignore[misc]
                )

    def _step(self, owner: int) -> int:
        """The elements of a piece of that part."""
        low, high = self.parts[owner]
        itemsize = self.partial.itemsize
        return min(max((high - low) * itemsize // _PIECES, _LEAST), _MOST) // itemsize

    def _pieces(self, owner: int) -> list[tuple[int, int]]:
        low, high = self.parts[owner]
        step = self._step(owner)
        return [(start, min(start + step, high)) for start in range(low, high, step)]


def _ignore(_: int) -> None:
    pass
