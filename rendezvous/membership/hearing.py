"""What the messages of agents do to the books. Nothing is decided here."""

from __future__ import annotations

from ..messages import (
    Beat,
    Done,
    Dying,
    Exited,
    Failed,
    Finished,
    Hello,
    Ready,
    Refused,
    Release,
    Released,
    Restart,
    Started,
    Stop,
    ToServer,
    Welcome,
    WorkerClaim,
)
from .books import Books
from .budget import by_own_fault, exit_in_words
from .commands import drain, stop
from .members import Agent, Worker
from .reports import broken, finished, formed, hear_worker, leave, ready

_LEAP = 1 << 20  # generations that a server before this one may have announced without making one durable
_AGREED = ("min", "max", "max_restarts", "min_timeout")  # of the other limits, the first agent's count


def hear(books: Books, name: str, message: ToServer) -> None:
    """One message of the agent `name`."""
    if isinstance(message, Hello):
        _hello(books, name, message)
        return
    agent = books.roster.agents.get(name)
    if agent is None or not agent.connected or books.roster.is_gone(name, agent.pod):
        return  # the first message on a connection is Hello
    agent.since = books.now
    if agent.absent:
        _return(books, agent)
    if books.over:
        if isinstance(message, (Started, Ready, Finished, Exited)):
            _tell_end(books, name)
    elif isinstance(message, Beat):
        _beat(books, agent, message)
    elif isinstance(message, Started):
        _started(books, agent, message)
    elif isinstance(message, Dying):
        _dying(books, agent, message)
    elif isinstance(message, Exited):
        _exited(books, agent, message)
    elif isinstance(message, Stop):
        stop(books, Failed(message.code, message.reason or f"stopped from {agent.host}"))
    elif hasattr(message, "worker"):
        worker = books.roster.workers.get(message.worker)
        if worker is not None and worker.agent == name:
            hear_worker(books, agent, worker, message)


# --- agents ----------------------------------------------------------------------------------------------------------


def _hello(books: Books, name: str, hello: Hello) -> None:
    """An agent's word on its own workers is the last word: what it does not claim is gone."""
    refusal = _refusal(books, name, hello)
    fresh = name not in books.roster.agents
    agent = books.roster.add_agent(name, hello.host, hello.meeting, books.now, hello.pod)
    agent.leaving = agent.leaving or name in books.drained_agents
    agent.restarts = hello.restarts
    if refusal:
        books.tell(name, Refused(refusal))
        books.note("refused", f"{hello.host} was refused: {refusal}", agent=name)
        agent.connected = False
        if fresh:
            del books.roster.agents[name]
        return
    books.note("connected", f"{hello.host} connected", agent=name, workers=len(hello.workers), again=not fresh)
    books.tell(name, Welcome(books.timing.lease, books.formed_number, books.spec.hang_timeout, books.term))
    if books.over:
        _tell_end(books, name)
        return
    if hello.announced > books.number:
        books.number = hello.announced
        if books.current is not None:
            books.current.outdated = True
    dead = books.roster.dead
    books.dying = {nonce for nonce in books.dying if nonce in dead and dead[nonce].agent != name}
    claimed = {claim.worker for claim in hello.workers}
    for worker in books.roster.of_agent(name):
        if worker.nonce not in claimed:
            books.bury(worker, f"{books.name(worker.nonce)} is no longer with its agent")
    for claim in hello.workers:
        if claim.worker not in dead:
            _claim(books, agent, claim)
    books.repeat_announcement(agent)
    for (owner, local_rank), due in list(books.restarts.items()):
        if owner == name:
            books.tell(name, Restart(local_rank, max(0.0, due - books.now)))


def _refusal(books: Books, name: str, hello: Hello) -> str:
    if books.roster.is_gone(name, hello.pod):
        return f"this {'agent' if name in books.roster.gone else 'pod'} was reported as gone"
    names = [name for name in _AGREED if hello.spec and getattr(hello.spec, name) != getattr(books.agreed, name)]
    if names:
        given = ", ".join(f"{name}={getattr(hello.spec, name)}" for name in names)
        agreed = ", ".join(f"{name}={getattr(books.agreed, name)}" for name in names)
        return f"this agent was started with {given}, but the job runs with {agreed}"
    others = [
        agent for agent in books.roster.agents.values() if agent.name != name and agent.restarts != hello.restarts
    ]
    if others:
        what, they = ("restarts its scripts", "do not") if hello.restarts else ("does not restart its scripts", "do")
        return (
            f"this agent {what} at each change, and the job's others, as on {others[0].host}, {they}: see --on-change"
        )
    newest = max((claim.lineage for claim in hello.workers), default=0)
    if newest > books.formed_number and not books.over:
        return f"this server knows nothing of generation {newest} of the job: it was started anew without its store"
    if hello.announced > books.number + _LEAP:
        return f"generation {hello.announced} cannot have been announced: the newest is {books.number}"
    return ""


def _return(books: Books, agent: Agent) -> None:
    """It was silent for longer than the lease, on a connection that held: nothing that was told to it is lost."""
    agent.absent = False
    books.note("returned", f"{agent.host} is heard again", agent=agent.name)
    if not books.over:
        for worker in books.roster.of_agent(agent.name):
            if worker.phase != "evicted":
                worker.fate = ""


def _tell_end(books: Books, name: str) -> None:
    books.tell(name, Done() if books.over == "done" else books.failure or Failed(1))


def _claim(books: Books, agent: Agent, claim: WorkerClaim) -> None:
    known = books.roster.workers.get(claim.worker)
    if known is not None and known.agent != agent.name:
        return
    worker = known or books.roster.add_worker(claim.worker, agent.name, claim.local_rank, books.now)
    books.restarts.pop((agent.name, claim.local_rank), None)
    worker.checkpoint = max(worker.checkpoint, claim.checkpoint)
    if claim.leaving:
        leave(books, worker)
    elif claim.worker in books.drained:
        drain(books, worker)
    if worker.released:
        books.tell(agent.name, Released(worker.nonce, worker.last_holder))
    elif books.stopping is not None:
        books.release(worker, last_holder=0 < claim.lineage == books.formed_number)
    elif claim.phase == "finished":
        worker.registered, worker.lineage = True, max(worker.lineage, claim.lineage)
        finished(books, worker)
    elif claim.phase == "ready":
        worker.registered = True
        ready(books, agent, worker, claim.lineage, claim.checkpoint)
    elif claim.phase == "member":
        worker.registered = True
        _claim_member(books, agent, worker, claim, known is None)


def _claim_member(books: Books, agent: Agent, worker: Worker, claim: WorkerClaim, unknown: bool) -> None:
    worker.lineage = max(worker.lineage, claim.lineage)
    if books.formed_number and claim.formed == books.formed_number:
        worker.lineage = claim.formed
    generation = books.current
    if unknown:
        worker.phase = "member"
    if generation is None or worker.nonce not in generation.ranks or worker.phase != "member":
        books.evict(worker, worker.fate or "the job went on without it")
        return
    worker.fate = ""
    if claim.formed == generation.number:
        formed(books, worker, generation.number, 0)
    if generation.state == "formed" and generation.ranks[worker.nonce] >= 0:
        books.tell(agent.name, Release(generation.number, generation.parked))
    if claim.broken:
        broken(books, worker, claim.broken)


# --- processes -------------------------------------------------------------------------------------------------------


def _beat(books: Books, agent: Agent, message: Beat) -> None:
    for nonce, step, samples in message.progress:
        worker = books.roster.workers.get(nonce)
        if worker is not None and worker.agent == agent.name:
            worker.pace.heard(step, samples, books.now)


def _started(books: Books, agent: Agent, message: Started) -> None:
    if message.worker in books.roster.workers or message.worker in books.roster.dead:
        return
    for worker in books.roster.of_agent(agent.name):
        if worker.local_rank == message.local_rank:
            books.bury(worker, f"{books.name(worker.nonce)} was replaced")
    books.restarts.pop((agent.name, message.local_rank), None)
    worker = books.roster.add_worker(message.worker, agent.name, message.local_rank, books.now)
    if books.stopping is not None:
        books.release(worker)
    elif agent.leaving:
        drain(books, worker)


def _dying(books: Books, agent: Agent, message: Dying) -> None:
    """A loss already; what it costs is decided when the process has `Exited`."""
    worker = books.roster.workers.get(message.worker)
    if worker is not None and worker.agent == agent.name:
        books.dying.add(worker.nonce)
        words = "died" if message.code is None else exit_in_words(message.code)
        books.bury(worker, f"{books.name(worker.nonce)} {words}")


def _exited(books: Books, agent: Agent, message: Exited) -> None:
    worker = books.roster.workers.get(message.worker) or books.roster.dead.get(message.worker)
    if worker is not None and worker.agent != agent.name:
        return
    if message.worker in books.exits:
        _exited_again(books, agent, worker, message)
        return
    books.exits.add(message.worker)
    books.dying.discard(message.worker)
    if worker is None:
        worker = books.roster.add_worker(message.worker, agent.name, message.local_rank, books.now)
    words = f"{books.name(worker.nonce)} {exit_in_words(message.code)}"
    if message.reason:
        words += f": {message.reason}"
    if worker.released or message.kind == "left":
        words = f"{books.name(worker.nonce)} left"
    if worker.nonce in books.roster.workers:
        books.bury(worker, words)
    if worker.surplus and not agent.leaving and worker.local_rank >= 0:
        books.vacated.add((worker.agent, worker.local_rank))
    if message.kind == "done" and not worker.registered and books.roster.formed is None:
        books.ended += 1
    if books.finishing or books.stopping is not None or worker.leaving or worker.released:
        return
    if message.kind == "crash":
        _crashed(books, worker, message, words)
    elif message.kind == "stale":
        _refill(books, worker, 0.0)
    elif message.kind == "rejected":
        books.note("rejected", words, worker=worker.nonce, tail=message.tail)
        if books.roster.formed is None and not books.roster.workers and not books.pending_restart():
            books.fail(Failed(message.code or 1, words, message.tail))


def _exited_again(books: Books, agent: Agent, worker: Worker | None, message: Exited) -> None:
    """The agent has not heard the answer. What is pending was told again after its `Hello`; what was forgotten is now."""
    if worker is None or message.kind not in ("crash", "stale") or worker.leaving or worker.released:
        return
    taken = any(other.local_rank == worker.local_rank for other in books.roster.of_agent(agent.name))
    if not taken and (agent.name, worker.local_rank) not in books.restarts and books.stopping is None:
        _refill(books, worker, 0.0)


def _crashed(books: Books, worker: Worker, message: Exited, words: str) -> None:
    slot = (worker.agent, worker.local_rank)
    verdict = books.budget.crashed(slot, worker.nonce, message.step, message.code, books.now - worker.started_at)
    books.note("crash", words, worker=worker.nonce, code=message.code, step=message.step, used=books.budget.used)
    if verdict.failure:
        books.fail(Failed(message.code or 1, f"{words} ({verdict.failure})", message.tail))
        return
    if by_own_fault(message.code) and books.roster.is_holder(worker):
        books.holder_crash = Failed(message.code, words, message.tail)
    _refill(books, worker, verdict.delay)


def _refill(books: Books, worker: Worker, delay: float) -> None:
    """Have the slot of a worker that is gone filled again."""
    if worker.local_rank >= 0:
        books.restarts[worker.agent, worker.local_rank] = books.now + delay
        books.tell(worker.agent, Restart(worker.local_rank, delay))
