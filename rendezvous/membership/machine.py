"""The membership state machine: events in, effects out. No sockets, no clocks, no threads.

Hearing what was said changes the books (`hearing.py`, `reports.py`); deciding looks at the books alone (`deciding.py`,
`damage.py`, `cutting.py`, `starting.py`). The caller owns the time: it hands in `now` with every event, and promises to
hand in what is queued before it calls `tick`. Limits are judged in `tick` only. Each event is decided about at once, or
many that are queued together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..messages import Beat, Failed, JobSpec, ToServer
from .books import Books
from .budget import CrashBudget
from .commands import drain, drain_host, stop
from .deciding import decide, formed
from .effects import Confirm, Effect, Event, Finish, Persist, PersistDone, Tell
from .facts import Facts
from .hearing import hear
from .members import FormedGeneration, Generation, Timing
from .resizing import resize
from .roster import Roster
from .snapshot import snapshot

STORE_UNUSABLE = 69  # the job's exit code

__all__ = [
    "Confirm",
    "Effect",
    "Event",
    "Finish",
    "FormedGeneration",
    "Membership",
    "Persist",
    "PersistDone",
    "Tell",
    "Timing",
]


class Membership:
    """One job. `formed`, `done` and `facts` are what the store knows of it when this server begins to decide.

    `term` grows from one deciding server to the next, 0 for one that is alone. With one, the store is asked whether it
    answers before a planned change is announced: nothing can form while it does not.
    """

    def __init__(
        self,
        spec: JobSpec,
        timing: Timing = Timing(),
        formed: FormedGeneration | None = None,
        done: bool = False,
        secret: Callable[[], str] | None = None,
        facts: Facts | None = None,
        term: int = 0,
    ) -> None:
        new_secret = secret or (lambda: secrets.token_hex(16))
        self._books = Books(spec, timing, new_secret, CrashBudget(spec.max_restarts), Roster(formed=formed))
        self._books.term = term
        self._heard_anything = False
        self._hears_only = False
        self._undecided = False
        if facts is not None:
            self._recall(facts)
        if formed is not None:
            self._books.number = formed.generation
            self._books.current = _adopted(formed, self._books.spec.min, 0.0)
        if done:
            self._books.over = "done"

    # --- events ------------------------------------------------------------------------------------------------------

    def said(self, agent: str, message: ToServer, now: float) -> list[Effect]:
        """The agent said `message`, for itself or for one of its workers. `Hello` opens or reopens its connection."""
        self._enter(now)
        hear(self._books, agent, message)
        if isinstance(message, Beat) and not self._books.effects:
            return []  # it only puts off the judgement of a lease: a tick that comes too early does no harm
        return self._leave()

    def closed(self, agent: str, now: float) -> list[Effect]:
        """The agent's connection closed. Not to be said of one that a later connection has already replaced."""
        self._enter(now)
        known = self._books.roster.agents.get(agent)
        if known is not None and known.connected:
            known.connected, known.since = False, self._books.now
            self._books.note("disconnected", f"{known.host} closed its connection", agent=agent)
            if not self._books.roster.of_agent(agent):
                self._books.forget(known)
        return self._leave()

    def gone(self, name: str, reason: str, now: float) -> list[Effect]:
        """A pod, an agent with all its workers, or one worker, is known to be gone, whatever its connection says."""
        self._enter(now)
        books = self._books
        worker = books.roster.workers.get(name)
        if worker is not None:
            books.bury(worker, f"{books.name(name)} is gone: {reason}")
        else:  # perhaps an agent that has yet to say its Hello
            books.roster.gone.add(name)
            for agent in [agent for agent in books.roster.agents.values() if name in (agent.name, agent.pod)]:
                for worker in books.roster.of_agent(agent.name):
                    books.bury(worker, f"{books.name(worker.nonce)} is gone: {reason}")
                agent.absent = True
        return self._leave()

    def drain(self, worker: str, now: float) -> list[Effect]:
        """The worker is asked to leave by plan. Raises KeyError if there is no such worker."""
        self._enter(now)
        drain(self._books, self._books.roster.workers[worker])
        return self._leave()

    def drain_host(self, host: str, now: float) -> list[Effect]:
        """All workers of a host, or of a pod by its id, are asked to leave by plan. Raises KeyError if no agent is there."""
        self._enter(now)
        drain_host(self._books, host)
        return self._leave()

    def resize(self, least: int | None, most: int | None, now: float) -> list[Effect]:
        """The job's `min` and `max` from here on, None to leave one as it is; agents may go on saying what it was.

        Raises ValueError for sizes that no job can have; then nothing changes.
        """
        self._enter(now)
        spec = self._books.spec
        resize(self._books, spec.min if least is None else least, spec.max if most is None else most)
        return self._leave()

    def stop(self, code: int, reason: str, now: float) -> list[Effect]:
        """The whole job is to end in order, as a failure with `code`; as an agent's `Stop`."""
        self._enter(now)
        if not self._books.over:
            stop(self._books, Failed(code, reason))
        return self._leave()

    def persisted(self, generation: int, now: float) -> list[Effect]:
        """The compare-and-set of a `Persist` succeeded. An answer that comes twice does nothing."""
        self._enter(now)
        current = self._books.current
        if current is not None and current.state == "persisting" and current.number == generation:
            formed(self._books, current)
        return self._leave()

    def persist_refused(self, generation: int, actual: FormedGeneration | None, now: float) -> list[Effect]:
        """The compare-and-set of a `Persist` lost: the store holds `actual`."""
        self._enter(now)
        current = self._books.current
        if current is not None and current.state == "persisting" and current.number == generation:
            if actual is not None and actual.generation == generation:
                formed(self._books, current)
            elif actual is None or actual.generation < self._books.formed_number:
                reason = f"the store has lost generation {self._books.formed_number} of the job"
                self._books.fail(Failed(STORE_UNUSABLE, reason))
            else:
                current.state, current.outdated = "forming", True
                self._adopt(actual)
        return self._leave()

    def adopt(self, actual: FormedGeneration, now: float) -> list[Effect]:
        """The store holds a newer formed generation than this machine knows (another replica made it durable)."""
        self._enter(now)
        self._adopt(actual)
        return self._leave()

    def confirmed(self, now: float) -> list[Effect]:
        """The store has answered a `Confirm`: this server still leads."""
        self._enter(now)
        self._books.confirming, self._books.confirmed = False, True
        return self._leave()

    @contextmanager
    def hearing_only(self) -> Iterator[None]:
        """Events inside are heard, and nothing is decided: `decide` is to be called after it.

        Decisions look at the books alone, so it is as if the events had come at the same time.
        """
        self._hears_only = True
        try:
            yield
        finally:
            self._hears_only = False

    def decide(self, now: float) -> list[Effect]:
        """What follows from what was only heard. Nothing if all has been decided about."""
        self._enter(now)
        return self._leave() if self._undecided else []

    def persisted_done(self, now: float) -> list[Effect]:
        """Success is durable."""
        self._enter(now)
        if self._books.finishing and not self._books.over:
            self._books.done()
        return self._leave()

    def tick(self, now: float) -> list[Effect]:
        """Judge every limit up to `now`. To be called at `next_deadline`, after all that is queued was handed in."""
        self._enter(now)
        self._books.clock = self._books.now
        return self._leave()

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """What must outlive this server, beside the last formed generation and the job's success."""
        books = self._books
        return Facts(
            spec=books.agreed,
            min=books.spec.min,
            max=books.spec.max,
            crashes=books.budget.used,
            drained=sorted(books.drained),
            drained_agents=sorted(books.drained_agents),
            vacated=sorted(books.vacated),
            failed=books.failure,
        )

    def next_deadline(self) -> float | None:
        """When `tick` is needed next; it may lie in the past, then at once."""
        return None if self._books.over else self._books.deadline

    @property
    def over(self) -> bool:
        """Whether the job is done or failed. Late arrivals still have to be told."""
        return bool(self._books.over)

    @property
    def state(self) -> str:
        """One of "starting", "forming", "running", "parked", "lost", "stopping", "finishing", "done", "failed"."""
        books = self._books
        if books.over or books.stopping is not None or books.finishing:
            return books.over or ("finishing" if books.finishing else "stopping")
        if books.roster.formed is not None and not books.roster.able_holders() and not books.roster.finished():
            return "lost"
        if books.current is None:
            return "starting"
        if books.current.state != "formed":
            return "forming"
        return "parked" if books.current.parked else "running"

    def snapshot(self) -> dict[str, Any]:
        """Plain data about the job, for people and programs that ask over HTTP."""
        return snapshot(self._books, self.state, self._books.now)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _recall(self, facts: Facts) -> None:
        books = self._books
        books.agreed = facts.spec
        books.spec = msgspec.structs.replace(facts.spec, min=facts.min, max=facts.max)
        books.budget.used = facts.crashes
        books.drained, books.drained_agents = set(facts.drained), set(facts.drained_agents)
        books.vacated = set(facts.vacated)
        if facts.failed is not None:
            books.over, books.failure = "failed", facts.failed

    def _enter(self, now: float) -> None:
        books = self._books
        if not self._heard_anything:
            self._heard_anything = True
            books.now = books.clock = now
            if books.roster.formed is not None:
                books.roster.unseen_until = (
                    now + books.timing.suspicion + books.timing.lease + books.timing.return_pause
                )
        late = now - max(now if books.deadline is None else books.deadline, books.now)
        if late > books.timing.lease / 3:
            self._after_pause(now, late)
        books.now = max(books.now, now)
        books.effects = []

    def _leave(self) -> list[Effect]:
        self._undecided = True
        if not self._hears_only:
            if not self._books.over:
                decide(self._books)
                self._watch_unseen()
            self._undecided = False
        effects, self._books.effects = self._books.effects, []
        return effects

    def _watch_unseen(self) -> None:
        """Members that are known from the store alone are judged when their time is over."""
        books = self._books
        if books.roster.formed is not None and books.clock < books.roster.unseen_until:
            books.wait_until(books.roster.unseen_until)

    def _after_pause(self, now: float, late: float) -> None:
        """The server itself stood still: what it did not hear in that time is nobody's fault."""
        books = self._books
        for agent in books.roster.agents.values():
            if not agent.absent:
                agent.since = now
        if books.clock < books.roster.unseen_until:
            books.roster.unseen_until += late
        if books.below_since is not None:
            books.below_since += late
        if books.lost_since is not None:
            books.lost_since += late

    def _adopt(self, actual: FormedGeneration) -> None:
        books = self._books
        if actual.generation <= books.formed_number:
            return
        books.roster.formed = actual
        books.number = max(books.number, actual.generation)
        for nonce in actual.members:
            worker = books.roster.workers.get(nonce)
            if worker is not None and worker.phase in ("member", "finished"):
                worker.lineage = actual.generation
        if books.current is None or books.current.number < actual.generation:
            books.current = _adopted(actual, books.spec.min, books.now)
        else:
            books.current.outdated = True


def _adopted(formed_generation: FormedGeneration, minimum: int, now: float) -> Generation:
    """A generation that was announced by a server before this one."""
    return Generation(
        number=formed_generation.generation,
        members=formed_generation.members,
        leavers=(),
        announced_at=now,
        minimum=minimum,
        adopted=True,
        state="formed",
    )
