"""Who is where in a generation, from what its keepers tell each other: pure.

The server's ranks say who was there first. Scripts expect more: that the ranks of one host follow each other, and that
local ranks count from 0. So ranks are given anew, hosts in the order of their node ranks, for those who were given one, then
of their first server rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """What a keeper says of itself. `store` is HOST:PORT of a store for the generation, said by one of them or a few.

    `store_is_served`: it listens already; otherwise the script of rank 0 is to serve it. `node` is the agent's node rank as it
    was told by --node-rank, -1 if it was not. `address` is HOST:PORT for the script itself to listen on.
    """

    agent: str
    slot: int
    role: str = "default"
    store: str = ""
    store_is_served: bool = False
    node: int = -1
    address: str = ""


class Seat(msgspec.Struct, frozen=True):
    """One script's place, in torchrun's words: a group is the scripts of one agent.

    `cross_rank` counts, in Horovod's words, the scripts with the same local rank, of which each group has one at most.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role_rank: int
    role_world_size: int
    cross_rank: int
    cross_world_size: int
    store: str
    store_is_served: bool
    workers: tuple[str, ...]
    """Everybody's address, in rank order."""


def seat(entries: Sequence[Entry], place: int) -> Seat:
    """The seat of `entries[place]`; they are in the order of the server's ranks."""
    names = _agents_in_order(entries)
    agents = {name: number for number, name in enumerate(names)}
    order = sorted(entries, key=lambda entry: (agents[entry.agent], entry.slot))
    me = entries[place]
    rank = order.index(me)
    mates = [entry for entry in order if entry.agent == me.agent]
    local_rank = mates.index(me)
    crossing = [name for name in names if sum(entry.agent == name for entry in order) > local_rank]
    same_role = [entry for entry in order if entry.role == me.role]
    with_store = next((entry for entry in order if entry.store), me)
    return Seat(
        rank=rank,
        world_size=len(order),
        local_rank=local_rank,
        local_world_size=len(mates),
        group_rank=agents[me.agent],
        group_world_size=len(agents),
        role_rank=same_role.index(me),
        role_world_size=len(same_role),
        cross_rank=crossing.index(me.agent),
        cross_world_size=len(crossing),
        store=with_store.store,
        store_is_served=with_store.store_is_served,
        workers=tuple(entry.address for entry in order),
    )


def _agents_in_order(entries: Sequence[Entry]) -> list[str]:
    """The first one has a store: rank 0 is where MASTER_ADDR is."""
    nodes: dict[str, int] = {}
    for entry in entries:
        nodes.setdefault(entry.agent, entry.node)
    names = sorted(nodes, key=lambda name: nodes[name] if nodes[name] >= 0 else len(entries) + max(nodes.values()))
    first = next((name for name in names if any(entry.store for entry in entries if entry.agent == name)), names[0])
    return [first, *(name for name in names if name != first)]
