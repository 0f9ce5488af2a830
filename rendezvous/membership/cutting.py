"""Who is in the next generation, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .books import Books, Cut
from .members import Generation, Worker


@dataclass(frozen=True)
class LetGo:
    """The last holders of the state all leave, and nobody is there to take it from them."""

    holders: tuple[str, ...]


def survivors(books: Books, cause: str, reason: str) -> Cut | LetGo | None:
    """The members after a loss: every holder that is here, and nobody else. None if there is no such holder."""
    able = books.roster.able_holders()
    if not able:
        return None
    staying = [worker for worker in able if not worker.leaving]
    staying = [worker for worker in staying if worker.not_before <= books.now] or staying
    leaving = [worker for worker in able if worker.leaving]
    if not staying and not _takers(books):
        return LetGo(_nonces(leaving))
    if not staying:
        staying, leaving = leaving, []
    return Cut(_nonces(staying), cause, reason, leavers=_nonces(leaving), abort=True)


def change(books: Books, generation: Generation) -> Cut | LetGo | None:
    """The planned generation after `generation`, which stands: without those that leave, with those that are ready."""
    roster, limit = books.roster, books.spec.max
    members = [roster.workers[nonce] for nonce in generation.members if nonce in roster.workers]
    in_step = [w for w in members if w.phase == "member" and roster.here(w) and not w.released]
    if len(in_step) < len(generation.members):
        return None  # some have finished or are suspected: there is no common boundary to be had
    staying = [worker for worker in members if not worker.leaving]
    leaving = [worker for worker in members if worker.leaving]
    waiting = [worker for worker in roster.ready() if generation.ranks.get(worker.nonce, -1) < 0]
    joiners = [worker for worker in waiting if not books.wait_until(worker.not_before)]
    if leaving and not staying:
        if joiners:  # they take the state first, in one ring with somebody who has it
            kept = max(1, limit - len(joiners))
            taken = joiners[: max(1, limit - kept)]
            return Cut(
                _nonces(leaving[:kept] + taken),
                "joined",
                _changes(books, taken, leaving[kept:]),
                _nonces(leaving[kept:]),
            )
        return None if _takers(books) else LetGo(_nonces(leaving))
    taken = joiners[: max(0, limit - len(staying))]
    if not leaving and not taken:
        return _parked_anew(books, generation, staying)
    cause = "joined" if taken else "drained"
    return Cut(_nonces(staying + taken), cause, _changes(books, taken, leaving), _nonces(leaving))


def _parked_anew(books: Books, generation: Generation, members: Sequence[Worker]) -> Cut | None:
    """The same members once more, where another `min` than before says whether they may step."""
    least = books.spec.min
    few = len(members) + len(books.roster.finished()) < least
    if generation.minimum == least or (generation.parked == few and not generation.adopted):
        return None
    return Cut(_nonces(members), "resized", f"min is {least}")


def _takers(books: Books) -> bool:
    """Whether somebody who stays could take the state from leaving holders, within a moment."""
    roster = books.roster
    for worker in roster.workers.values():
        if worker.leaving or worker.released:
            continue
        if worker.phase == "ready" and roster.here(worker):
            return True
        if roster.is_holder(worker) and roster.agent_of(worker).suspected and worker.phase != "finished":
            return True
        recalled = worker.phase == "evicted" and roster.here(worker)
        if recalled and books.wait_until(worker.evicted_at + books.timing.recall):
            return True
    return False


def _changes(books: Books, joiners: Sequence[Worker], leavers: Sequence[Worker]) -> str:
    told = []
    if joiners:
        hosts = sorted({books.roster.agent_of(worker).host for worker in joiners})
        who = "a worker" if len(joiners) == 1 else f"{len(joiners)} workers"
        told.append(f"{who} joined from {', '.join(hosts[:3])}{' and others' if len(hosts) > 3 else ''}")
    if leavers:
        verb = "leaves" if len(leavers) == 1 else "leave"
        told.append(f"{books.names([worker.nonce for worker in leavers])} {verb}")
    return "; ".join(told)


def _nonces(workers: Sequence[Worker]) -> tuple[str, ...]:
    return tuple(worker.nonce for worker in workers)
