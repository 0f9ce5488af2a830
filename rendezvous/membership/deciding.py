"""What follows from the books: called after every event, it brings the job one step nearer to where it should be.

Nothing is remembered of how a situation arose; every decision looks at what is the case. So whatever order the events
come in, the same books lead to the same decision.
"""

from __future__ import annotations

from ..messages import Failed
from .books import Books, Cut
from .cutting import LetGo, change, survivors
from .damage import Damage, damage, unreachable, watched
from .members import FormedGeneration, Generation
from .resizing import drain_surplus, fill_vacated
from .starting import find_checkpoint, start, state_lost

BELOW_MIN = 75  # the job's exit code


def decide(books: Books) -> None:
    """Judge who is absent, then take decisions until none is left to be taken."""
    books.deadline = None
    _judge_agents(books)
    if books.stopping is not None and not books.over:
        _stop(books, books.stopping)
        return
    for _ in range(len(books.roster.workers) + 4):
        if books.over or books.finishing or not _take_one(books):
            break


def formed(books: Books, generation: Generation) -> None:
    """`generation` is durable."""
    books.roster.formed = FormedGeneration(generation.number, generation.members)
    generation.state, generation.fresh = "formed", False
    books.fruitless, books.holder_crash = 0, None
    books.lost_since, books.asked_for_checkpoints = None, False
    for nonce in generation.members:
        worker = books.roster.workers.get(nonce)
        if worker is not None and worker.phase in ("member", "finished"):
            worker.lineage, worker.strikes = generation.number, 0
    steps = sorted(set(generation.formed_by.values()))
    books.note(
        "formed",
        f"generation {generation.number} has formed with {len(generation.members)} workers",
        generation=generation.number,
        world_size=len(generation.members),
        steps=steps,
        seconds=books.now - generation.announced_at,
    )
    if books.stopping is not None or books.over:
        return
    books.release_members(generation)
    for nonce in generation.leavers:
        worker = books.roster.workers.get(nonce)
        if worker is not None and not worker.released:
            books.release(worker)


def _judge_agents(books: Books) -> None:
    timing = books.timing
    for agent in list(books.roster.agents.values()):
        if agent.absent and not agent.connected:
            if not books.wait_until(agent.since + timing.forget):
                books.forget(agent)
        elif not agent.absent:
            limit = timing.lease if agent.connected else timing.suspicion
            if not books.wait_until(agent.since + limit):
                agent.absent = True
                what = "is silent" if agent.connected else "closed its connection and did not come back"
                text = f"{agent.host} {what} for {limit:g} s"
                books.note("absent", text, agent=agent.name)
                for worker in books.roster.of_agent(agent.name):
                    worker.fate = f"{books.name(worker.nonce)} was lost: {text}"


def _stop(books: Books, failure: Failed) -> None:
    alive = [worker for worker in books.roster.workers.values() if not books.roster.agent_of(worker).absent]
    if not alive or not books.wait_until(books.stop_at):
        books.fail(failure)


def _take_one(books: Books) -> bool:
    """Take the most pressing decision; True if there may be another."""
    generation = books.current
    if generation is not None and generation.state == "persisting":
        return False
    if _succeeded(books):
        books.finish()
        return False
    _release_idle(books)
    fill_vacated(books)
    broken = damage(books, generation) if generation is not None else None
    if books.over:  # a crash was one too many
        return False
    if generation is not None and broken is not None and _replace(books, generation, broken):
        return True
    if generation is not None and broken is None and _may_become_durable(books, generation):
        books.persist(generation)
        return False
    if books.roster.able_holders():
        books.lost_since, books.asked_for_checkpoints = None, False
    if books.roster.formed is None:
        if books.current is None and start(books):
            return True
    elif not books.roster.able_holders():
        if find_checkpoint(books):
            return True
    elif generation is None or generation.fresh:
        return _take_back(books)
    elif generation.state == "formed" and broken is None and _change(books, generation):
        return True
    _judge_minimum(books)
    return False


def _succeeded(books: Books) -> bool:
    """Somebody has finished, and nobody who is still in the ring has not."""
    roster = books.roster
    if roster.formed is None:
        others = [
            worker
            for worker in roster.workers.values()
            if worker.phase != "finished" and not worker.released and not roster.agent_of(worker).absent
        ]
        return bool(roster.finished() or books.ended) and not others and not books.pending_restart()
    if not any(worker.lineage > 0 for worker in roster.finished()):
        return False
    for nonce in roster.formed.members:
        worker = roster.workers.get(nonce)
        if roster.presence(nonce, books.clock) not in ("here", "suspected"):
            continue
        if worker is None or (worker.phase == "member" and roster.is_holder(worker) and not worker.released):
            return False
    return True


def _release_idle(books: Books) -> None:
    """Let go whoever leaves, is in no ring, and is no source of the state. Finished ones stay until the job is done."""
    for worker in list(books.roster.workers.values()):
        idle = worker.leaving and not worker.released and worker.phase not in ("member", "finished")
        if idle and books.roster.here(worker) and not books.roster.is_holder(worker):
            books.release(worker)


def _replace(books: Books, generation: Generation, broken: Damage) -> bool:
    """Announce the generation after one that broke. False if that has to wait for somebody who holds the state."""
    roster = books.roster
    _strike(books, generation)
    if generation.fresh:
        for nonce in generation.members:
            worker = roster.workers.get(nonce)
            if worker is not None and worker.phase == "member":
                books.evict(worker, f"generation {generation.number} did not form: {broken.reason}")
        books.current = None
        return True
    for nonce in watched(generation):
        worker = roster.workers.get(nonce)
        if worker is not None and worker.phase == "member" and not worker.released and not roster.is_holder(worker):
            books.evict(worker, f"generation {generation.number} was overtaken: {broken.reason}")
    cut = survivors(books, broken.cause, broken.reason)
    if cut is None:
        return False
    if isinstance(cut, LetGo):
        return _let_go(books, cut)
    if generation.state == "forming" and broken.cause == "broken":
        books.fruitless += 1
    books.announce(cut)
    return True


def _strike(books: Books, generation: Generation) -> None:
    """Count in how many generations running each member was awaited in vain, and evict those that were so twice."""
    if not generation.broken or generation.state == "formed" or generation.judged:
        return
    generation.judged = True
    awaited = {nonce for nonces in generation.broken.values() for nonce in nonces}
    workers = [books.roster.workers[nonce] for nonce in generation.members if nonce in books.roster.workers]
    for worker in workers:
        worker.strikes = worker.strikes + 1 if worker.nonce in awaited else 0
    for nonce in unreachable(generation, {worker.nonce: worker.strikes for worker in workers}):
        worker = books.roster.workers[nonce]
        if worker.phase == "member":
            books.banish(worker, f"{books.name(nonce)} could not be reached in two generations running")


def _let_go(books: Books, cut: LetGo) -> bool:
    for nonce in cut.holders:
        books.release(books.roster.workers[nonce], last_holder=True)
    return True


def _may_become_durable(books: Books, generation: Generation) -> bool:
    if generation.state != "forming" or not generation.is_complete:
        return False
    return not (generation.fresh and _holders_return(books))


def _holders_return(books: Books) -> bool:
    """Whether somebody is here who holds the state that a checkpoint is about to take the place of."""
    for worker in books.roster.workers.values():
        if books.roster.is_holder(worker) and books.roster.here(worker) and not worker.released:
            recalled = worker.phase == "evicted" and books.wait_until(worker.evicted_at + books.timing.recall)
            if recalled or worker.phase in ("member", "ready"):
                return True
    return False


def _take_back(books: Books) -> bool:
    """Holders are back that had been given up for a checkpoint: the state that they hold comes first."""
    able = books.roster.able_holders()
    if books.wait_until(max(worker.ready_at for worker in able) + books.timing.gather):
        return False
    if books.current is not None and _replace(books, books.current, Damage("lost", "a holder of the state is back")):
        return True
    cut = survivors(books, "lost", f"{books.names(worker.nonce for worker in able)} came back with the state")
    if isinstance(cut, Cut):
        books.announce(cut)
    elif cut is not None:
        _let_go(books, cut)
    return True


def _change(books: Books, generation: Generation) -> bool:
    """Announce a planned change, once those that come close together are all there."""
    drain_surplus(books, generation)
    cut = change(books, generation)
    if cut is None:
        books.change_at = None
        return False
    if books.change_at is None:
        books.change_at = books.now
    may = books.may_announce_a_plan()
    if books.wait_until(books.change_at + books.timing.gather) or not may:
        return False
    books.change_at = None
    if isinstance(cut, LetGo):
        return _let_go(books, cut)
    books.announce(cut)
    return True


def _judge_minimum(books: Books) -> None:
    """Fewer than `min` for too long ends the job."""
    roster = books.roster
    if roster.awaits_members(books.clock):
        books.below_since = None
        return
    lost = roster.formed is not None and not roster.able_holders() and not roster.finished()
    count = 0 if lost else roster.count()
    if count >= books.spec.min:
        books.below_since = None
        return
    if books.below_since is None:
        books.below_since = books.now
    if books.wait_until(books.below_since + books.spec.min_timeout):
        return
    if lost:
        books.fail(state_lost(books))
        return
    limit = f"{books.spec.min_timeout:g} s"
    reason = f"fewer than {books.spec.min} workers for {limit} (--min, --min-timeout): {count} were ready"
    silent = [worker for worker in roster.workers.values() if worker.phase == "preparing" and not worker.registered]
    if silent:
        who = "1 process runs but has" if len(silent) == 1 else f"{len(silent)} processes run but have"
        reason += f", {who} not called elastic.join()"
    books.fail(Failed(BELOW_MIN, reason))
