"""The state of one job's membership, and the few actions that change it and tell somebody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..messages import Announce, Done, Evicted, Failed, JobSpec, Place, Release, Released, ToAgent
from .budget import CrashBudget, Slot
from .effects import Confirm, Effect, Event, Finish, Persist, PersistDone, Tell
from .members import Agent, Generation, Timing, Worker
from .roster import Roster


@dataclass(frozen=True)
class Cut:
    """A generation to be announced: its members in rank order, those that leave with it, and why."""

    members: tuple[str, ...]
    cause: str
    reason: str
    leavers: tuple[str, ...] = ()
    abort: bool = False
    fresh: bool = False


@dataclass
class Books:
    """Everything that is known of one job.

    `now` is the time of the newest event. `clock` is the time of the last tick, up to which limits have been judged:
    whatever was queued before a tick is heard before any limit is held against anybody.
    """

    spec: JobSpec
    timing: Timing
    secret: Callable[[], str]
    budget: CrashBudget
    roster: Roster = field(default_factory=Roster)
    now: float = 0.0
    clock: float = 0.0
    number: int = 0  # of the newest announced generation
    agreed: JobSpec = field(init=False)  # what agents say that the job is, whatever `spec` has become since
    current: Generation | None = None
    restarts: dict[Slot, float] = field(default_factory=dict)  # slots told to start a worker -> when
    dying: set[str] = field(default_factory=set)  # buried workers whose exit has yet to be accounted for
    vacated: set[Slot] = field(default_factory=set)  # slots whose workers left for a lower `max`
    exits: set[str] = field(default_factory=set)  # workers whose exit has been accounted for
    drained: set[str] = field(default_factory=set)  # workers that were asked to leave
    drained_agents: set[str] = field(default_factory=set)  # whose hosts were, with all that is started there
    ended: int = 0  # scripts that ended well without ever joining
    over: str = ""  # "done", "failed"
    failure: Failed | None = None
    finishing: bool = False  # success is decided, and is being made durable
    stopping: Failed | None = None
    stop_at: float = 0.0
    below_since: float | None = None
    lost_since: float | None = None
    asked_for_checkpoints: bool = False
    reached_at: float | None = None
    change_at: float | None = None
    fruitless: int = 0  # generations in a row that broke without a loss before they had formed
    holder_crash: Failed | None = None
    term: int = 0  # with one, planned changes wait until the store has shown that it answers
    confirming: bool = False  # it was asked
    confirmed: bool = False  # it has answered since the last announcement
    effects: list[Effect] = field(default_factory=list)
    deadline: float | None = None  # the earliest time for which something waits

    def __post_init__(self) -> None:
        self.agreed = self.spec

    @property
    def formed_number(self) -> int:
        return self.roster.formed.generation if self.roster.formed else 0

    def tell(self, agent: str, message: ToAgent) -> None:
        known = self.roster.agents.get(agent)
        if known is not None and known.connected:
            self.effects.append(Tell(agent, message))

    def note(self, kind: str, text: str, **fields: object) -> None:
        self.effects.append(Event(kind, text, fields))

    def wait_until(self, when: float) -> bool:
        """False if `when` has passed; otherwise True, and the machine asks for a tick at that time."""
        if self.clock >= when:
            return False
        if self.deadline is None or when < self.deadline:
            self.deadline = when
        return True

    def name(self, nonce: str) -> str:
        return self.roster.name(nonce, (self.roster.formed, self.current))

    def names(self, nonces: Iterable[str]) -> str:
        """At most three names, then how many more."""
        everyone = list(nonces)
        more = f" and {len(everyone) - 3} more" if len(everyone) > 3 else ""
        return ", ".join(self.name(nonce) for nonce in everyone[:3]) + more

    def fates(self, nonces: Iterable[str]) -> str:
        everyone = list(nonces)
        known = (self.roster.dead.get(nonce) or self.roster.workers.get(nonce) for nonce in everyone[:3])
        told = [
            worker.fate if worker is not None and worker.fate else f"{self.name(nonce)} was lost"
            for nonce, worker in zip(everyone, known, strict=False)
        ]
        more = f" and {len(everyone) - 3} more" if len(everyone) > 3 else ""
        return "; ".join(dict.fromkeys(told)) + more

    def announce(self, cut: Cut) -> None:
        """Announce the next generation; whoever was a member and is not in it is told to drop its ring."""
        host = self.roster.agent_of(self.roster.workers[cut.members[0]])
        self.number += 1
        few = len(cut.members) + len(self.roster.finished()) < self.spec.min
        self.current = Generation(
            number=self.number,
            members=cut.members,
            leavers=cut.leavers,
            announced_at=self.now,
            previous=self.formed_number,
            abort=cut.abort,
            parked=few,
            joiners=sum(not self.roster.is_holder(self.roster.workers[nonce]) for nonce in cut.members),
            fresh=cut.fresh,
            minimum=self.spec.min,
            meeting=host.meeting,
            secret=self.secret(),
            cause=cut.cause,
            reason=cut.reason,
        )
        self.change_at = self.reached_at = None
        self.confirmed = False
        for worker in list(self.roster.workers.values()):
            if worker.nonce in self.current.ranks:
                worker.phase = "member"
            elif worker.phase == "member" and not worker.released:
                self.evict(worker, f"generation {self.number} was announced without it: {cut.reason}")
        self.note(
            "announced",
            f"generation {self.number}, {len(cut.members)} workers{' (parked)' if few else ''}: {cut.reason}",
            generation=self.number,
            world_size=len(cut.members),
            cause=cut.cause,
            abort=cut.abort,
            parked=few,
            joiners=self.current.joiners,
            members=list(cut.members),
            leavers=list(cut.leavers),
        )
        places = self._places(self.current, self.current.everyone)
        for agent in sorted(places, key=lambda name: name != host.name):
            self._tell_places(agent, self.current, places[agent])

    def repeat_announcement(self, agent: Agent) -> None:
        """Tell the agent its places in the current generation, if it has any. Workers take a repetition as none."""
        generation = self.current
        if generation is not None and generation.state != "formed" and not self.finishing:
            own = [nonce for nonce in agent.workers if nonce in generation.ranks]
            for places in self._places(generation, own).values():
                self._tell_places(agent.name, generation, places)

    def _places(self, generation: Generation, nonces: Iterable[str]) -> dict[str, list[Place]]:
        """Agent -> the places of its workers; without those that are known to be out of the generation again."""
        places: dict[str, list[Place]] = {}
        for nonce in nonces:
            worker = self.roster.workers.get(nonce)
            if worker is not None and worker.phase == "member" and not worker.released:
                places.setdefault(worker.agent, []).append(Place(nonce, generation.ranks[nonce]))
        return places

    def _tell_places(self, agent: str, generation: Generation, places: list[Place]) -> None:
        self.tell(
            agent,
            Announce(
                generation=generation.number,
                world_size=len(generation.members),
                places=places,
                meeting=generation.meeting,
                secret=generation.secret,
                formed=generation.previous,
                abort=generation.abort,
                parked=generation.parked,
                joiners=generation.joiners,
                cause=generation.cause,
                reason=generation.reason,
            ),
        )

    def persist(self, generation: Generation) -> None:
        generation.state = "persisting"
        self.effects.append(Persist(generation.number, generation.members, self.formed_number))

    def may_announce_a_plan(self) -> bool:
        """Whether the store has answered lately; otherwise it is asked."""
        if self.term and not self.confirmed and not self.confirming:
            self.confirming = True
            self.effects.append(Confirm())
        return not self.term or self.confirmed

    def release_members(self, generation: Generation) -> None:
        """The generation is durable: its members may take their first step."""
        for agent in self._places(generation, generation.members):
            self.tell(agent, Release(generation.number, generation.parked))

    def release(self, worker: Worker, last_holder: bool = False) -> None:
        """The worker may go."""
        worker.released, worker.last_holder = True, last_holder
        self.tell(worker.agent, Released(worker.nonce, last_holder))
        self.note("released", f"{self.name(worker.nonce)} may leave", worker=worker.nonce, last_holder=last_holder)

    def evict(self, worker: Worker, reason: str) -> None:
        """The worker is no member any more. If it lives, it says `Ready`."""
        worker.phase, worker.fate, worker.evicted_at = "evicted", reason, self.now
        self.tell(worker.agent, Evicted(worker.nonce, reason))

    def banish(self, worker: Worker, reason: str) -> None:
        """Evict a worker that harms its generation, and take it in again only after a growing while."""
        worker.not_before = self.now + min(60.0, 2.0**worker.evictions)
        worker.evictions += 1
        worker.strikes = 0
        self.note("evicted", reason, worker=worker.nonce)
        self.evict(worker, reason)

    def bury(self, worker: Worker, fate: str) -> None:
        """The worker is gone for certain."""
        self.note("left" if worker.released else "lost", fate, worker=worker.nonce)
        self.drained.discard(worker.nonce)
        self.roster.bury(worker.nonce, fate)

    def forget(self, agent: Agent) -> None:
        """Drop an agent that is away. If it ever comes back, its claims tell everything that matters."""
        self.roster.forget(agent.name)
        self.restarts = {slot: due for slot, due in self.restarts.items() if slot[0] != agent.name}
        self.vacated = {slot for slot in self.vacated if slot[0] != agent.name}
        self.drained_agents.discard(agent.name)

    def finish(self) -> None:
        """Success is decided. Nothing is announced from here on."""
        self.finishing = True
        self.effects.append(PersistDone())

    def done(self) -> None:
        self.over = "done"
        for name in self.roster.agents:
            self.tell(name, Done())
        self.note("done", "the job is done")
        self.effects.append(Finish("done"))

    def fail(self, failure: Failed) -> None:
        self.over, self.failure = "failed", failure
        for name in self.roster.agents:
            self.tell(name, failure)
        self.note("failed", failure.reason, code=failure.code, tail=failure.tail)
        self.effects.append(Finish("failed", failure.code, failure.reason))

    def pending_restart(self) -> bool:
        """Whether an agent that is here is to start a worker, or may be told to once it has said how one ended."""
        agents, dead = self.roster.agents, self.roster.dead
        names = {name for name, _ in self.restarts} | {dead[nonce].agent for nonce in self.dying if nonce in dead}
        return any(name in agents and agents[name].here for name in names)
