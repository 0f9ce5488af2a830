"""Collectives in which the members' bytes are passed on unchanged, from neighbour to neighbour.

They go round both ways at once, half of the ring each, so the farthest member is half a ring away. What comes in is passed on
piece by piece, as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .heading import SIZE, Heading
from .lanes import Lane, Lanes

PIECE = 1024 * 1024  # bytes

Room = Callable[[int, int], memoryview]
"""The place for that rank's bytes, of that size."""


def exchange(
    lanes: Lanes, rank: int, size: int, heading: Heading, own: memoryview, room: Room, any_size: bool = False
) -> None:
    """Give `own` to everybody, and put everybody else's bytes where `room` says. Sizes may differ with `any_size`."""
    forward = [(rank - distance) % size for distance in range(1, size // 2 + 1)]
    backward = [(rank + distance) % size for distance in range(1, (size - 1) // 2 + 1)]
    for ranks, incoming, outgoing in (
        (forward, lanes.previous, lanes.next),
        (backward, lanes.next, lanes.previous),
    ):
        if ranks:
            outgoing.send(heading.pack())
            outgoing.send(own)
            _take_all(_Passage(heading, any_size, room, incoming, outgoing), ranks)
    lanes.move()


def broadcast(
    lanes: Lanes, rank: int, size: int, heading: Heading, own: memoryview, room: Room, any_size: bool = False
) -> None:
    """Give the root's `own` to everybody else, who puts it where `room` says.

    Large ones of a known size go one way alone, so that the root need not send them twice.
    """
    reach = size // 2 if any_size or heading.nbytes <= PIECE else size - 1  # the members that it reaches going forward
    distance = (rank - heading.root) % size
    if distance == 0:
        for lane in [lanes.next, lanes.previous][: 1 if reach == size - 1 else 2]:
            lane.send(heading.pack())
            lane.send(own)
    elif distance <= reach:
        passage = _Passage(heading, any_size, room, lanes.previous, lanes.next)
        passage.take(heading.root, pass_on=distance < reach)
    else:
        passage = _Passage(heading, any_size, room, lanes.next, lanes.previous)
        passage.take(heading.root, pass_on=distance > reach + 1)
    lanes.move()


def _take_all(passage: _Passage, ranks: list[int]) -> None:
    """From each of `ranks`, one after the other; those of the last have come far enough."""
    rank, *others = ranks
    passage.take(rank, pass_on=bool(others), then=(lambda: _take_all(passage, others)) if others else None)


@dataclass(frozen=True)
class _Passage:
    """One direction: what comes in on one lane goes out on the other."""

    heading: Heading
    any_size: bool
    room: Room
    incoming: Lane
    outgoing: Lane

    def take(self, rank: int, pass_on: bool, then: Callable[[], None] | None = None) -> None:
        """Queue what is needed for the message of `rank` to come in, and `then` for when it has."""
        head = bytearray(SIZE)

        def came(piece: memoryview, last: bool) -> None:
            if pass_on:
                self.outgoing.send(piece)
            if last and then is not None:
                then()

        def headed() -> None:
            nbytes = self.heading.check(head, rank, self.any_size)
            place = self.room(rank, nbytes)
            starts = range(0, nbytes, PIECE)
            came(memoryview(head), last=not starts)
            for start in starts:
                piece, last = place[start : start + PIECE], start + PIECE >= nbytes
                self.incoming.receive(piece, lambda piece=piece, last=last: came(piece, last))  # type: ignore[misc]

        self.incoming.receive(memoryview(head), headed)
