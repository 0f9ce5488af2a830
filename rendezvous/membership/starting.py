"""Generations of workers that do not hold the job's state: the very first one, and one restored from a checkpoint."""

from __future__ import annotations

from ..messages import Failed
from .books import Books, Cut
from .members import Worker

STATE_LOST = 76  # the job's exit code


def _gathered(books: Books, ready: list[Worker]) -> bool:
    """Whether a generation of fresh workers should be cut: `min` are there, and the others had time to come."""
    if len(ready) < books.spec.min:
        books.reached_at = None
        return False
    if books.reached_at is None:
        books.reached_at = books.now
    if len(ready) >= books.spec.max:
        return True
    if _more_are_coming(books):
        return not books.wait_until(books.reached_at + books.timing.start_window)
    return not books.wait_until(max(worker.ready_at for worker in ready) + books.timing.gather)


def _more_are_coming(books: Books) -> bool:
    """Whether there are workers that prepare, that will be started, or that were told to become ready again."""
    coming = books.roster.coming(books.clock, books.timing)
    for worker in coming:
        if worker.phase == "evicted":
            books.wait_until(worker.evicted_at + books.timing.recall)
    return bool(coming) or books.pending_restart()


def start(books: Books) -> bool:
    """The very first generation."""
    ready = [worker for worker in books.roster.ready() if not books.wait_until(worker.not_before)]
    if not _gathered(books, ready):
        return False
    members = tuple(worker.nonce for worker in ready[: books.spec.max])
    who = "the first worker is" if len(members) == 1 else f"the first {len(members)} workers are"
    books.announce(Cut(members, "start", f"{who} ready", fresh=True))
    return True


def find_checkpoint(books: Books) -> bool:
    """Nobody who is here holds the state.

    Once no holder can be hoped for, restore the last-resort checkpoint, or fail.
    """
    roster, timing = books.roster, books.timing
    assert roster.formed is not None
    if books.lost_since is None:
        books.lost_since = books.now
    absent = False
    for nonce in roster.formed.members:
        presence = roster.presence(nonce, books.clock)
        worker = roster.workers.get(nonce)
        if presence == "suspected" or (presence == "here" and worker is not None and roster.is_holder(worker)):
            return False
        absent = absent or presence == "absent"
    if absent and books.wait_until(books.lost_since + timing.restore_grace):
        return False
    if books.current is not None and books.current.fresh:
        return False
    ready = roster.ready()
    if not books.asked_for_checkpoints:
        books.asked_for_checkpoints = True
        for worker in ready:
            books.evict(worker, "every holder of the state is gone: looking for a checkpoint")
        return True
    ready = [worker for worker in ready if not books.wait_until(worker.not_before)]
    step = max((worker.checkpoint for worker in ready), default=0)
    if step > 0:
        if not _gathered(books, ready):
            return False
        ready.sort(key=lambda worker: worker.checkpoint != step)
        members = tuple(worker.nonce for worker in ready[: books.spec.max])
        if any(agent.restarts for agent in roster.agents.values()):
            reason = "every worker of before is gone: the scripts start again"
        else:
            reason = f"every holder of the state is gone: the checkpoint of step {step} is restored"
        books.announce(Cut(members, "restored", reason, fresh=True))
        return True
    if not ready or absent or _more_are_coming(books):
        return False
    if not books.wait_until(max(books.lost_since, max(worker.ready_at for worker in ready)) + timing.lost_grace):
        books.fail(state_lost(books))
    return False


def state_lost(books: Books) -> Failed:
    reason = "every holder of the state is gone, and no worker can read a checkpoint (elastic.join(checkpoint=DIR) writes some)"
    if books.holder_crash is not None:
        return Failed(books.holder_crash.code, f"{books.holder_crash.reason}; {reason}", books.holder_crash.tail)
    return Failed(STATE_LOST, reason)
