"""Whether a generation still stands: who is missing from it, who hangs, who cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..messages import Failed
from .books import Books
from .members import Generation, ScriptCrash


@dataclass(frozen=True)
class Damage:
    """Why a generation must be followed by another. `cause` as in `Announce`."""

    cause: str
    reason: str


def watched(generation: Generation) -> tuple[str, ...]:
    """Workers whose loss breaks the generation, or the ring before it that a planned change has still to leave."""
    planned = generation.state == "forming" and not generation.abort
    return generation.everyone if planned else generation.members


def damage(books: Books, generation: Generation) -> Damage | None:
    """None while it stands, or may do so: the limits still to be waited for are noted in `books`."""
    roster, timing = books.roster, books.timing
    if roster.awaits_members(books.clock):
        return None
    lost, evicted, left, suspected, let_go = [], [], [], [], []
    for nonce in watched(generation):
        worker = roster.workers.get(nonce) or roster.dead.get(nonce)
        if worker is not None and worker.released and (generation.state == "formed" or nonce in generation.leavers):
            let_go.append(nonce)
            continue
        presence = roster.presence(nonce, books.clock)
        if presence in ("dead", "absent") or (worker is not None and worker.released):
            lost.append(nonce)
        elif presence == "suspected":
            suspected.append(nonce)
        elif worker is not None and worker.phase == "evicted":
            evicted.append(nonce)
        elif worker is not None and worker.phase == "ready":
            left.append(nonce)
    if let_go and generation.state == "formed" and roster.able_holders():
        lost += let_go  # the last holders that were known, they were let go; and then another one came back
    if lost:
        return Damage("lost", books.fates(lost))
    if evicted:
        return Damage("evicted", books.fates(evicted))
    if left:
        return Damage("broken", f"{books.names(left)} left the ring")
    if generation.crash is not None:
        return _of_crash(books, generation, generation.crash, suspected)
    if generation.outdated:
        return Damage("broken", "the server was replaced while a generation was forming")
    if reported := generation.reporters:
        broken_at, reporters = min(reported.values()), books.names(reported)
        if suspected:
            # A proxy may have closed everybody's connection: who lives is back within a moment.
            closed = max(roster.agent_of(roster.workers[nonce]).since for nonce in suspected)
            if books.wait_until(max(closed, broken_at) + timing.settle):
                return None
            return Damage("lost", f"{books.names(suspected)} closed the connection, and the ring broke at {reporters}")
        settle = min(2.0, timing.settle * 2.0**books.fruitless)
        if not books.wait_until(broken_at + settle):
            return Damage("broken", f"the ring broke at {reporters}")
    return _stalled(books, generation) or _overdue(books, generation)


def _of_crash(books: Books, generation: Generation, crash: ScriptCrash, suspected: Sequence[str]) -> Damage | None:
    """A script fails by itself, or because those of an agent that is lost are gone, which is no crash.

    The loss may be heard a little later than the failure.
    """
    roster = books.roster
    members = [worker for nonce in generation.members if (worker := roster.workers.get(nonce)) is not None]
    if any(worker.agent != crash.slot[0] for worker in members):
        closed = [roster.agent_of(roster.workers[nonce]).since for nonce in suspected]
        if books.wait_until(max([crash.at, *closed]) + books.timing.settle):
            return None
        if suspected:
            return Damage("lost", f"{books.names(suspected)} closed the connection, and {crash.words}")
    if not generation.charged:
        generation.charged = True
        _charge(books, generation, crash)
    return Damage("broken", crash.words)


def _charge(books: Books, generation: Generation, crash: ScriptCrash) -> None:
    """The crash counts against the budget, and may fail the job."""
    lived = crash.at - generation.announced_at
    verdict = books.budget.crashed(crash.slot, crash.worker, 0, crash.code, lived)
    fields = {"worker": crash.worker, "code": crash.code, "generation": generation.number}
    books.note("crash", crash.words, **fields, used=books.budget.used)
    if verdict.failure:
        books.fail(Failed(crash.code or 1, f"{crash.words} ({verdict.failure})", crash.tail))


def _stalled(books: Books, generation: Generation) -> Damage | None:
    """Members that wait for their peers too long say so; the one that does not is the one that hangs."""
    if not generation.stalled or books.wait_until(min(generation.stalled.values()) + books.timing.stall_grace):
        return None
    silent = [
        nonce
        for nonce in watched(generation)
        if (worker := books.roster.workers.get(nonce)) is not None
        and worker.phase == "member"
        and not worker.released
        and (generation.fresh or generation.state != "forming" or books.roster.is_holder(worker))
        and nonce not in generation.stalled
    ]
    reporters = books.names(generation.stalled)
    for nonce in silent:
        books.banish(books.roster.workers[nonce], f"{books.name(nonce)} hangs: {reporters} waited for it")
    if silent:
        return Damage("evicted", books.fates(silent))
    return Damage("broken", f"every member waits for the others ({reporters})")


def _overdue(books: Books, generation: Generation) -> Damage | None:
    """A planned change may take as long as a step; anything else has to form in time."""
    if generation.state != "forming":
        return None
    planned = not generation.abort and not generation.fresh
    since = generation.first_formed_at if planned else generation.announced_at
    if since is None or books.wait_until(since + books.timing.forming):
        return None
    silent = [nonce for nonce in generation.members if nonce not in generation.formed_by]
    limit = f"{books.timing.forming:g} s"
    reason = f"generation {generation.number} has not formed in {limit}: no word of {books.names(silent)}"
    if generation.formed_by:
        for nonce in silent:
            if (worker := books.roster.workers.get(nonce)) is not None and worker.phase == "member":
                books.banish(worker, reason)
    return Damage("broken", reason)


def unreachable(generation: Generation, strikes: Mapping[str, int]) -> list[str]:
    """Members to evict because others waited for them in vain, twice running (`strikes` of at least 2).

    A report that names a member which had itself reported before says nothing: that one may have given up first.
    Whoever has said nothing at all goes first, then whoever is awaited by most, then the highest rank; each time only
    as long as somebody who stays waits for it. So of two that cannot reach each other one stays.
    """
    spoke: set[str] = set()
    awaited_by: dict[str, set[str]] = {}
    for reporter, awaited in generation.broken.items():
        for nonce in awaited:
            if nonce not in spoke:
                awaited_by.setdefault(nonce, set()).add(reporter)
        spoke.add(reporter)
    spoke |= set(generation.formed_by)
    evicted: list[str] = []
    while candidates := [nonce for nonce, by in awaited_by.items() if by and strikes.get(nonce, 0) >= 2]:
        worst = max(candidates, key=lambda nonce: (nonce not in spoke, len(awaited_by[nonce]), generation.ranks[nonce]))
        evicted.append(worst)
        del awaited_by[worst]
        for by in awaited_by.values():
            by.discard(worst)
    return evicted
