"""Agreements between steps: an evaluation, a reduced metric. Done as a whole by all members, or again by those that are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .exchange import Action
from .member import Member, Pending
from .ring.guard import came_from_ring
from .ring.ring import Ring


def agree(member: Member, compute: Callable[[Ring], bytes]) -> bytes:
    """What `compute` gives over the current ring; the same bytes on every member.

    If the ring breaks in it, those that are left do it again, or take the result from who has it already.
    """
    while True:
        ring = member.ring
        if ring is None:
            member.boundary()
            continue
        try:
            ring.guard.check()
            result = compute(ring)
        except Exception as error:
            if ring.guard.broken is None or not came_from_ring(error):
                raise
            result_of_others = _recover(member)
            if result_of_others is None:
                continue
            result = result_of_others
        member.passed(result)
        return result


def _recover(member: Member) -> bytes | None:
    pending = Pending("unit")
    if member.recover(pending) is Action.TAKE_RESULT:
        return pending.result
    return None


def share_of(length: int, rank: int, world_size: int, batch_size: int) -> Iterator[Sequence[int]]:
    """One member's share of `length` samples, in batches: each sample is exactly one member's."""
    first, last = length * rank // world_size, length * (rank + 1) // world_size
    for start in range(first, last, batch_size):
        yield range(start, min(start + batch_size, last))
