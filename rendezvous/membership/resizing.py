"""A job's `min` and `max` at run time: who has to leave when there are too many, and whose slots are filled again."""

from __future__ import annotations

import msgspec

from ..messages import Restart
from .books import Books
from .commands import drain
from .members import Generation, Worker


def resize(books: Books, least: int, most: int) -> None:
    """ValueError if no job can be like that. What follows is decided with everything else, from the books."""
    if not 1 <= least <= most:
        raise ValueError(f"a job needs 1 <= min <= max, not min={least} max={most}")
    if (least, most) == (books.spec.min, books.spec.max):
        return
    text = f"min {books.spec.min} becomes {least}, max {books.spec.max} becomes {most}"
    books.spec = msgspec.structs.replace(books.spec, min=least, max=most)
    books.note("resized", text, min=least, max=most)


def drain_surplus(books: Books, generation: Generation) -> None:
    """Members of a standing generation that are more than `max` are drained; their slots may be filled again later."""
    staying = [
        worker
        for nonce in generation.members
        if (worker := books.roster.workers.get(nonce)) is not None
        and worker.phase == "member"
        and not worker.leaving
        and not worker.released
    ]
    for worker in surplus(staying, len(staying) - books.spec.max):
        worker.surplus = True
        drain(books, worker)


def surplus(members: list[Worker], count: int) -> list[Worker]:
    """Of `members`, in rank order, the `count` that should go: whole hosts where that comes out even, else the last ranks.

    Which hosts together have just `count` members is a subset sum; bit n of `sums[i]` says that some of the first i hosts
    have n. Taken from the back, the hosts with the highest ranks go first.
    """
    if count <= 0:
        return []
    sizes: dict[str, int] = {}
    for worker in members:
        sizes[worker.agent] = sizes.get(worker.agent, 0) + 1
    sums = [1]
    for size in sizes.values():
        sums.append((sums[-1] | sums[-1] << size) & ((1 << (count + 1)) - 1))
    if not sums[-1] >> count & 1:
        return members[-count:]
    going: set[str] = set()
    left = count
    for (agent, size), before in zip(reversed(sizes.items()), reversed(sums[:-1]), strict=True):
        if size <= left and before >> (left - size) & 1:
            going.add(agent)
            left -= size
    return [worker for worker in members if worker.agent in going]


def fill_vacated(books: Books) -> None:
    """Slots whose workers had to leave for a lower `max` get fresh workers as soon as there is room for them."""
    if not books.vacated:
        return
    expected = [worker for worker in books.roster.workers.values() if not worker.leaving and not worker.released]
    room = books.spec.max - len(expected) - len(books.restarts)
    known = [slot for slot in sorted(books.vacated) if slot[0] in books.roster.agents]
    for slot in known[: max(0, room)]:
        books.vacated.discard(slot)
        agent = books.roster.agents[slot[0]]
        taken = any(worker.local_rank == slot[1] for worker in books.roster.of_agent(slot[0]))
        if not agent.leaving and not taken:
            books.restarts[slot] = books.now
            books.tell(slot[0], Restart(slot[1]))
