"""What the reports of workers do to the books."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import (
    Broken,
    Crashed,
    Finished,
    Formed,
    Leaving,
    Ready,
    Registered,
    Released,
    Stalled,
    ToServer,
)
from .books import Books
from .budget import exit_in_words
from .members import Agent, Generation, ScriptCrash, Worker


def hear_worker(books: Books, agent: Agent, worker: Worker, message: ToServer) -> None:
    if isinstance(message, Registered):
        worker.registered = True
    elif isinstance(message, Ready):
        ready(books, agent, worker, message.lineage, message.checkpoint)
    elif isinstance(message, Formed):
        formed(books, worker, message.generation, message.step)
    elif isinstance(message, Broken):
        broken(books, worker, message.generation, message.reason, message.awaited)
    elif isinstance(message, Crashed):
        crashed(books, worker, message)
    elif isinstance(message, Stalled):
        stalled(books, worker, message.generation)
    elif isinstance(message, Finished):
        finished(books, worker)
    elif isinstance(message, Leaving):
        leave(books, worker)


def ready(books: Books, agent: Agent, worker: Worker, lineage: int, checkpoint: int) -> None:
    worker.registered = True
    if worker.released:
        books.tell(agent.name, Released(worker.nonce, worker.last_holder))
        return
    generation = books.current
    if worker.phase == "finished":
        return
    forming = generation is not None and generation.state == "forming" and worker.nonce in generation.ranks
    if worker.phase == "member" and generation is not None and forming and worker.nonce not in generation.formed_by:
        books.repeat_announcement(agent)  # said before it heard of the generation
        return
    if worker.phase != "ready":
        worker.ready_at = books.now
        books.note("ready", f"{books.name(worker.nonce)} is ready", worker=worker.nonce, lineage=lineage)
    worker.phase, worker.lineage, worker.checkpoint, worker.fate = "ready", lineage, checkpoint, ""


def formed(books: Books, worker: Worker, number: int, step: int) -> None:
    generation = books.current
    if generation is None or number != generation.number or generation.state != "forming":
        return
    if generation.ranks.get(worker.nonce, -1) >= 0 and worker.phase == "member":
        generation.formed_by[worker.nonce] = step
        if generation.first_formed_at is None:
            generation.first_formed_at = books.now


def _about_current(books: Books, worker: Worker, number: int) -> Generation | None:
    """The current generation, if the report is about its ring, or the one that a planned change has yet to leave."""
    generation = books.current
    if generation is None or worker.phase != "member" or worker.nonce not in generation.ranks:
        return None
    leaving_old = generation.state == "forming" and not generation.abort and number == generation.previous > 0
    return generation if number == generation.number or leaving_old else None


def broken(books: Books, worker: Worker, number: int, reason: str = "", awaited: Sequence[int] = ()) -> None:
    generation = _about_current(books, worker, number)
    if generation is None:
        return
    if number == generation.number:
        if generation.broken_at is None:
            generation.broken_at = books.now
        members = generation.members
        nonces = tuple(members[rank] for rank in awaited if 0 <= rank < len(members) and members[rank] != worker.nonce)
        generation.broken[worker.nonce] = generation.broken.get(worker.nonce, ()) + nonces
    else:
        generation.left_broken.setdefault(worker.nonce, books.now)
    text = f"{books.name(worker.nonce)} reports the ring of generation {number} as broken"
    if reason:
        text += f": {reason}"
    books.note("broken", text, worker=worker.nonce, generation=number, awaited=list(awaited))


def crashed(books: Books, worker: Worker, message: Crashed) -> None:
    """One crash a generation counts: when a script is gone, those of its peers fail for that."""
    generation = books.current
    if generation is None or worker.phase != "member" or message.generation != generation.number or books.stopping:
        return
    words = f"{books.name(worker.nonce)} {exit_in_words(message.code)}"
    if message.reason:
        words += f": {message.reason}"
    if generation.crash is not None:
        fields = {"worker": worker.nonce, "code": message.code, "generation": generation.number}
        books.note("crash", f"{words}, after {generation.crash.words}", **fields, used=books.budget.used)
        return
    slot = (worker.agent, worker.local_rank)
    generation.crash = ScriptCrash(worker.nonce, slot, message.code, words, message.tail, books.now)


def stalled(books: Books, worker: Worker, number: int) -> None:
    generation = _about_current(books, worker, number)
    if generation is not None and worker.nonce not in generation.stalled:
        generation.stalled[worker.nonce] = books.now
        text = f"{books.name(worker.nonce)} waits for its peers for too long"
        books.note("stalled", text, worker=worker.nonce, generation=number)


def finished(books: Books, worker: Worker) -> None:
    if worker.phase != "finished" and not worker.released:
        worker.phase = "finished"
        books.note("finished", f"{books.name(worker.nonce)} has finished", worker=worker.nonce)


def leave(books: Books, worker: Worker) -> None:
    """The worker is to leave by plan."""
    if not worker.leaving:
        worker.leaving = True
        books.note("leaving", f"{books.name(worker.nonce)} is to leave", worker=worker.nonce)
