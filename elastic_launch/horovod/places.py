"""Where each member is: ranks among the members of one host, and among hosts, as Horovod's scripts ask for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of itself. `slot` is its place on its host, which it keeps for its life.

    `fusion_limit` (bytes) is what it would choose; rank 0's counts.
    """

    host: str
    slot: int
    fusion_limit: int = 0


@dataclass(frozen=True)
class Place:
    """`local_rank` is the slot, so that a GPU that was chosen by it stays this member's when others go; it may have gaps."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    is_homogeneous: bool = True


def place(seats: Sequence[Seat], rank: int) -> Place:
    """Of the member `rank`. `seats` are everybody's, by rank."""
    local = _local_ranks(seats)
    mine = seats[rank].host
    hosts = list(dict.fromkeys(seat.host for seat in seats))
    with_mine = [
        host for host in hosts if (host, local[rank]) in {(s.host, r) for s, r in zip(seats, local, strict=True)}
    ]
    on_host = Counter(seat.host for seat in seats)
    return Place(
        rank=rank,
        size=len(seats),
        local_rank=local[rank],
        local_size=on_host[mine],
        cross_rank=with_mine.index(mine),
        cross_size=len(with_mine),
        is_homogeneous=len(set(on_host.values())) == 1,
    )


def _local_ranks(seats: Sequence[Seat]) -> list[int]:
    """Slots; on a host with several agents, where two members may have the same one, the order of slots and ranks."""
    ranks = [seat.slot for seat in seats]
    for host in {seat.host for seat in seats}:
        members = [rank for rank, seat in enumerate(seats) if seat.host == host]
        if len({ranks[member] for member in members}) < len(members):
            for local, member in enumerate(sorted(members, key=lambda rank: (seats[rank].slot, rank))):
                ranks[member] = local
    return ranks
