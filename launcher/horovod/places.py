"""Where the processes of a generation stand, in Horovod's words.

Its elastic mode broadcasts the state from rank 0 at every change, so rank 0 must be one that holds the state. The ranks
of one host follow each other. Local ranks are in the order of the slots, so that on a full host each process keeps its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """What one worker's agent says of its process.

    `holds` is the newest generation in which it has got, or given, the state; 0 for none. `has_seen_state`: some process of an
    earlier generation of its own held one.
    """

    agent: str
    slot: int
    holds: int = 0
    has_seen_state: bool = False


class Place(msgspec.Struct, frozen=True):
    """`cross_rank` counts the hosts that have a process with this local rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def in_horovods_words(self) -> bytes:
        """The answer to `GET /rank_and_size/...`."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers)).encode()

    def variables(self) -> dict[str, str]:
        return {
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(self.local_size),
            "HOROVOD_CROSS_RANK": str(self.cross_rank),
            "HOROVOD_CROSS_SIZE": str(self.cross_size),
        }


def place_of(entries: Sequence[Entry], index: int) -> Place:
    """The place of `entries[index]`; they are in the order of the server's ranks."""
    first = max(entries, key=lambda entry: entry.holds)  # the first one of those that hold the newest
    agents = list(dict.fromkeys([first.agent, *(entry.agent for entry in entries)]))
    order = sorted(entries, key=lambda entry: (entry is not first, agents.index(entry.agent), entry.slot))
    me = entries[index]
    mates = _slots(entries, me.agent)
    local_rank = mates.index(me.slot)
    crossing = [agent for agent in agents if len(_slots(entries, agent)) > local_rank]
    return Place(
        rank=order.index(me),
        size=len(order),
        local_rank=local_rank,
        local_size=len(mates),
        cross_rank=crossing.index(me.agent),
        cross_size=len(crossing),
    )


def has_lost_the_state(entries: Sequence[Entry]) -> bool:
    """There was one, and nobody here holds it: to go on would be to start from the beginning, without a word."""
    return any(entry.has_seen_state for entry in entries) and not any(entry.holds for entry in entries)


def _slots(entries: Sequence[Entry], agent: str) -> list[int]:
    return sorted(entry.slot for entry in entries if entry.agent == agent)
