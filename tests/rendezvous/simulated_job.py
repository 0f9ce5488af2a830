"""A whole job in one thread: agents, workers, network and store obey the protocol around the real membership machine.

Time is invented. Every message travels through a queue, so that a test decides what arrives when. What must hold at all
times is checked as the machine's effects are carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from elastic_launch.rendezvous.membership.effects import Effect, Event, Finish, Persist, PersistDone, Tell
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.membership.members import FormedGeneration, Timing
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Broken,
    Crashed,
    Done,
    Drain,
    Dying,
    Evicted,
    Exited,
    Failed,
    Finished,
    Formed,
    Hello,
    JobSpec,
    Leaving,
    Ready,
    Refused,
    Registered,
    Release,
    Released,
    Restart,
    Stalled,
    Started,
    ToAgent,
    ToServer,
    Welcome,
    WorkerClaim,
)

BEAT = 1.0


@dataclass
class SimulatedWorker:
    nonce: str
    agent: SimulatedAgent
    slot: int
    phase: str = "preparing"
    lineage: int = 0
    reported: int = 0  # newest generation reported as formed
    broken: int = 0  # newest generation reported as broken
    stalled: int = 0
    target: int = 0  # newest announced generation that it has heard of
    rank: int = -1  # in `target`
    ring: int = 0  # the generation in whose released ring it steps
    arrived: int = 0  # the generation at whose meeting point it waits
    checkpoint: int = 0
    alive: bool = True
    hung: bool = False
    late: bool = False  # not out of the last step of a ring that all leave
    leaving: bool = False
    gone_by_plan: bool = False
    evicted: bool = False  # was told so, and has not come back yet
    ended: bool = False  # its script came to an end without ever joining

    @property
    def well(self) -> bool:
        return self.alive and not self.hung


@dataclass
class SimulatedAgent:
    name: str
    slots: int
    connected: bool = False
    silent: bool = False  # its host is frozen: neither speaks nor hears, and the connection stays
    dead: bool = False
    told_end: str = ""
    announced: int = 0
    last_beat: float = 0.0
    last_heard: float = 0.0  # by the server
    workers: list[SimulatedWorker] = field(default_factory=list)
    unanswered: dict[str, Exited] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)
    to_server: deque[ToServer] = field(default_factory=deque)
    to_agent: deque[ToAgent] = field(default_factory=deque)

    @property
    def living(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers if worker.alive]


@dataclass
class Ring:
    """What the simulation knows of an announced generation."""

    number: int
    members: tuple[str, ...]
    announcement: Announce
    complete: bool = False
    finishing: bool = False


class SimulatedJob:
    def __init__(
        self, spec: JobSpec, timing: Timing = Timing(), *, instant_store: bool = True, patient: bool = False
    ) -> None:
        """`patient`: nobody who waits at a meeting point gives up, however long a message is under way.

        And nothing that an agent says is under way for as long as it takes to think that it is silent.
        """
        self.patient = patient
        self.spec, self.timing, self.instant_store = spec, timing, instant_store
        self.machine = Membership(spec, timing, secret=lambda: "secret")
        self.now = 0.0
        self.agents: dict[str, SimulatedAgent] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self.rings: dict[int, Ring] = {}
        self.newest = 0
        self.formed = FormedGeneration(0, ())
        self.history: list[FormedGeneration] = []
        self.answers: deque[Callable[[], list[Effect]]] = deque()
        self.known_dead: set[str] = set()
        self.released: set[str] = set()
        self.success_decided = False
        self.finish: Finish | None = None
        self.failed: Failed | None = None
        self.events: list[Event] = []
        self.announcements: list[Announce] = []
        self.training_is_over = False
        self._made = 0

    # --- what a test does ----------------------------------------------------------------------------------------

    def add_agent(self, slots: int = 1, *, connect: bool = True, ready: bool = True) -> SimulatedAgent:
        agent = SimulatedAgent(f"agent-{len(self.agents)}", slots)
        self.agents[agent.name] = agent
        if connect:
            self.connect(agent)
        for slot in range(slots):
            worker = self.start_worker(agent, slot)
            if ready:
                self.prepare(worker)
        return agent

    def connect(self, agent: SimulatedAgent) -> None:
        """Open the agent's connection (again). What was under way on the old one is lost."""
        assert not agent.dead
        if agent.connected:
            self.disconnect(agent)
        agent.connected, agent.last_heard = True, self.now
        agent.to_server.clear()
        agent.to_agent.clear()
        claims = [
            WorkerClaim(
                worker.nonce,
                worker.slot,
                worker.phase,
                worker.lineage,
                worker.reported,
                worker.broken,
                worker.checkpoint,
                worker.leaving,
            )
            for worker in agent.living
        ]
        host = agent.name.replace("agent", "host")
        self.send(agent, Hello(agent.name, host, f"{host}:1", self.spec, claims, agent.announced))
        for exited in agent.unanswered.values():
            self.send(agent, exited)

    def disconnect(self, agent: SimulatedAgent) -> None:
        """Its connection closes; the server notices at once."""
        if agent.connected:
            agent.connected = False
            agent.to_server.clear()
            agent.to_agent.clear()
            self.carry_out(self.machine.closed(agent.name, self.now))

    def start_worker(self, agent: SimulatedAgent, slot: int) -> SimulatedWorker:
        self._made += 1
        worker = SimulatedWorker(f"w{self._made}", agent, slot)
        self.workers[worker.nonce] = worker
        agent.workers.append(worker)
        self.send(agent, Started(worker.nonce, slot))
        return worker

    def prepare(self, worker: SimulatedWorker) -> None:
        """It has imported and built everything, and waits."""
        if worker.well and worker.phase == "preparing":
            worker.phase = "ready"
            self.send(worker.agent, Registered(worker.nonce))
            self.send(worker.agent, Ready(worker.nonce, worker.lineage, worker.checkpoint))

    def kill(
        self, worker: SimulatedWorker, code: int = 137, kind: str = "crash", step: int = 0, tail: str = ""
    ) -> None:
        """Its process ends, and its agent says so."""
        if worker.alive:
            if code == 137:
                self.send(worker.agent, Dying(worker.nonce, code))
            worker.alive, worker.ended = False, kind == "done"
            exited = Exited(worker.nonce, code, kind, step, tail=tail, local_rank=worker.slot)
            if kind == "crash" and not worker.leaving:
                worker.agent.unanswered[worker.nonce] = exited
            self.send(worker.agent, exited)

    def kill_agent(self, agent: SimulatedAgent) -> None:
        """The agent and its workers end without a word, but for the closed connection."""
        agent.dead = True
        for worker in agent.living:
            worker.alive = False
        self.disconnect(agent)

    def leave(self, worker: SimulatedWorker) -> None:
        """Its agent has got SIGTERM."""
        if not worker.leaving:
            worker.leaving = True
            self.send(worker.agent, Leaving(worker.nonce))

    def drain(self, worker: SimulatedWorker) -> None:
        self.carry_out(self.machine.drain(worker.nonce, self.now))

    def drain_host(self, host: str) -> None:
        self.carry_out(self.machine.drain_host(host, self.now))

    def resize(self, least: int, most: int) -> None:
        """Agents go on saying what the job was at first."""
        self.carry_out(self.machine.resize(least, most, self.now))

    def report_gone(self, name: str) -> None:
        """The cluster says that a pod or a worker is gone."""
        gone = self.agents[name].workers if name in self.agents else [self.workers[name]]
        for worker in gone:
            worker.alive = False
            self.known_dead.add(worker.nonce)
        if name in self.agents:
            self.agents[name].dead = True
        self.carry_out(self.machine.gone(name, "pod deleted", self.now))

    # --- network and store ---------------------------------------------------------------------------------------

    def send(self, agent: SimulatedAgent, message: ToServer) -> None:
        if agent.connected:
            agent.to_server.append(message)

    def deliver_to_server(self, agent: SimulatedAgent) -> bool:
        if not agent.to_server or agent.silent:
            return False
        message = agent.to_server.popleft()
        agent.last_heard = self.now
        if isinstance(message, (Dying, Exited)):
            self.known_dead.add(message.worker)
        self.carry_out(self.machine.said(agent.name, message, self.now))
        return True

    def deliver_together(self, agents: Iterable[SimulatedAgent], limit: int = 1000) -> None:
        """The server hears at most `limit` messages of each agent, and decides once about all."""
        with self.machine.hearing_only():
            for agent in agents:
                for _ in range(limit):
                    if not self.deliver_to_server(agent):
                        break
        self.carry_out(self.machine.decide(self.now))

    def deliver_to_agent(self, agent: SimulatedAgent) -> bool:
        if not agent.to_agent or agent.silent:
            return False
        self._agent_hears(agent, agent.to_agent.popleft())
        return True

    def answer_from_store(self) -> bool:
        if not self.answers:
            return False
        self.carry_out(self.answers.popleft()())
        return True

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                agent = self.agents[effect.agent]
                self._check(effect.message)
                if agent.connected and not agent.dead:
                    agent.to_agent.append(effect.message)
                if isinstance(effect.message, Failed):
                    self.failed = effect.message
            elif isinstance(effect, Persist):
                self._persist(effect)
            elif isinstance(effect, PersistDone):
                assert not self.success_decided
                assert any(w.phase == "finished" or w.ended for w in self.workers.values())
                self.success_decided = True
                self.answers.append(lambda: self.machine.persisted_done(self.now))
            elif isinstance(effect, Finish):
                assert self.finish is None
                self.finish = effect
            else:
                self.events.append(effect)
        while self.instant_store and self.answer_from_store():
            pass

    def _persist(self, effect: Persist) -> None:
        assert effect.previous == self.formed.generation, (
            "a generation was to follow one that is not the last formed one"
        )
        assert effect.generation > self.formed.generation
        ring = self.rings[effect.generation]
        assert effect.members == ring.members
        lineages = {self.workers[nonce].lineage for nonce in effect.members}
        if ring.announcement.cause not in ("start", "restored"):
            assert effect.previous in lineages, "a generation formed without any holder of the state"
        elif ring.announcement.cause == "start":
            assert effect.previous == 0
        self.formed = FormedGeneration(effect.generation, effect.members)
        self.history.append(self.formed)
        self.answers.append(lambda: self.machine.persisted(effect.generation, self.now))

    def _check(self, message: ToAgent) -> None:
        """What must hold of everything that the machine says."""
        if isinstance(message, Announce):
            assert not self.success_decided, "a generation was announced after the success was decided"
            assert message.generation >= self.newest, "an old generation was announced"
            assert message.formed == self.formed.generation or self.answers, "an outdated formed generation was named"
            if message.generation > self.newest:
                self.newest = message.generation
                self._check_new(message)
            for place in message.places:
                assert place.worker not in self.known_dead, "a worker that is known to be dead was announced"
        elif isinstance(message, Release):
            assert any(formed.generation == message.generation for formed in self.history), "released before durable"
        elif isinstance(message, Released):
            self._check_released(message)
        elif isinstance(message, Failed) and message.code == 76 and self.failed is None:
            assert not self.holders(), "the job failed though somebody holds its state"

    def _check_new(self, message: Announce) -> None:
        books = self.machine._books
        assert books.current is not None and books.current.number == message.generation
        members = books.current.members
        assert message.world_size == len(members) == len(set(members))
        handover = any(books.roster.workers[nonce].leaving for nonce in members)
        if not message.abort:  # after a loss, every holder counts; those that are too many leave after it
            assert len(members) <= max(books.spec.max, len(self.formed.members)) + handover, "more than max"
        holders = [nonce for nonce in members if nonce in self.formed.members]
        assert message.joiners == sum(
            not books.roster.is_holder(books.roster.workers[nonce])
            for nonce in members[len(members) - message.joiners :]
        )
        if message.cause == "start":
            assert not self.history
        elif message.cause != "restored":
            assert any(
                self.formed.generation in (self.workers[nonce].lineage, self.workers[nonce].reported)
                for nonce in holders
            ), "a generation was announced without a holder of the state"
            order = [self.formed.members.index(nonce) for nonce in holders]
            assert members[: len(holders)] == tuple(holders) and order == sorted(order), "holders keep their order"
            if message.abort:
                assert len(holders) == len(members), "an unplanned generation takes in nobody"
        self.rings[message.generation] = Ring(message.generation, members, message)
        self.announcements.append(message)

    def _check_released(self, message: Released) -> None:
        books = self.machine._books
        if books.stopping is not None or message.worker in self.released:
            return
        self.released.add(message.worker)
        if message.worker not in self.formed.members:
            return
        leaver = books.roster.workers[message.worker]
        if not books.roster.is_holder(leaver):
            return
        others = [worker for worker in books.roster.able_holders() if not worker.leaving]
        takers = [worker for worker in books.roster.ready() if not worker.leaving]
        if message.last_holder:
            assert not others and not takers, "the last holder was let go though others could take the state"
        else:
            assert others, "a leaver was released while it was the only holder"

    # --- agents and workers --------------------------------------------------------------------------------------

    def _agent_hears(self, agent: SimulatedAgent, message: ToAgent) -> None:
        if isinstance(message, Announce):
            agent.announced = max(agent.announced, message.generation)
            for place in message.places:
                worker = self.workers[place.worker]
                if worker.alive and worker.phase != "finished":
                    self._worker_is_announced(worker, message, place.rank)
        elif isinstance(message, Welcome):
            for worker in agent.living:
                if worker.reported == message.formed > worker.lineage:
                    worker.lineage = worker.reported
        elif isinstance(message, Release):
            for worker in agent.living:
                if worker.reported == message.generation and worker.lineage <= message.generation:
                    worker.lineage = message.generation
                    if worker.target == message.generation and worker.phase == "member":
                        worker.ring = message.generation
        elif isinstance(message, Released):
            worker = self.workers[message.worker]
            worker.gone_by_plan = True
            self.kill(worker, 0, "left")
        elif isinstance(message, Evicted):
            worker = self.workers[message.worker]
            if worker.alive and worker.phase != "finished":
                worker.evicted = True
                self.come_back(worker)
        elif isinstance(message, Restart):
            taken = {worker.slot for worker in agent.living}
            agent.unanswered = {
                nonce: exited for nonce, exited in agent.unanswered.items() if exited.local_rank != message.local_rank
            }
            if message.local_rank not in taken and message.local_rank not in agent.restarts:
                agent.restarts.append(message.local_rank)
        elif isinstance(message, Drain):
            self.leave(self.workers[message.worker])
        elif isinstance(message, (Done, Failed, Refused)):
            agent.told_end = type(message).__name__
            for worker in agent.living:
                worker.alive = False

    def _worker_is_announced(self, worker: SimulatedWorker, message: Announce, rank: int) -> None:
        if message.formed == worker.reported > worker.lineage:
            worker.lineage = worker.reported
        if message.generation <= worker.target:
            return
        worker.evicted = False
        worker.target, worker.rank, worker.phase = message.generation, rank, "member"
        if message.abort:
            worker.ring = 0

    def come_back(self, worker: SimulatedWorker) -> bool:
        """It drops the ring that it was evicted from, and waits to be taken in. One that hangs does so when it wakes."""
        if not worker.well or not worker.evicted:
            return False
        worker.evicted, worker.phase, worker.ring, worker.arrived = False, "ready", 0, 0
        self.send(worker.agent, Ready(worker.nonce, worker.lineage, worker.checkpoint))
        return True

    def ring_of(self, worker: SimulatedWorker) -> list[SimulatedWorker]:
        """The members of the ring that it steps in."""
        return [self.workers[nonce] for nonce in self.rings[worker.ring].members] if worker.ring else []

    def arrive(self, worker: SimulatedWorker) -> bool:
        """It leaves its old ring (at a boundary that all agree on, if the change is planned) and goes to the new one."""
        if (
            not worker.well
            or worker.phase != "member"
            or worker.arrived == worker.target
            or worker.target == worker.ring
        ):
            return False
        if worker.ring:
            if worker.late:
                return False
            old = self.rings[worker.ring]
            peers = self.ring_of(worker)
            if old.finishing:
                return False
            if not all(peer.well and (peer.target >= worker.target or peer.gone_by_plan) for peer in peers):
                return False
        worker.ring, worker.arrived = 0, worker.target
        return worker.rank >= 0

    def complete(self, number: int) -> bool:
        """Everybody has met, copied and compared the state: the generation is complete, whether it is known or not."""
        ring = self.rings[number]
        members = [self.workers[nonce] for nonce in ring.members]
        if ring.complete or not all(worker.well and worker.arrived == number for worker in members):
            return False
        ring.complete = True
        return True

    def report_formed(self, worker: SimulatedWorker) -> bool:
        ring = self.rings.get(worker.arrived)
        if not worker.well or worker.phase != "member" or ring is None or not ring.complete:
            return False
        if worker.reported >= ring.number or worker.rank < 0:
            return False
        worker.reported = ring.number
        self.send(worker.agent, Formed(worker.nonce, ring.number, 0))
        return True

    def report_broken(self, worker: SimulatedWorker) -> bool:
        """It notices that a peer of the ring that it is in, or waits for, is not with it any more."""
        number = worker.ring or worker.arrived
        if self.patient and not worker.ring:
            return False
        if not worker.well or worker.phase != "member" or not number or worker.broken >= number:
            return False
        ring = self.rings[number]
        if number == worker.reported and not worker.ring:
            return False  # waits for its release
        members = [self.workers[nonce] for nonce in ring.members]
        if worker.ring:
            missing = [p for p in members if p.phase != "finished" and (not p.alive or p.ring != number != p.arrived)]
            awaited = []
            if not any(
                not p.alive or (p.target > number and self.rings[p.target].announcement.abort) or p.phase == "ready"
                for p in missing
            ):
                return False
        else:
            missing = [p for p in members if not p.well or p.phase in ("ready", "finished") or p.target > number]
            if not missing or ring.complete:
                return False
            awaited = [members.index(p) for p in missing]
        worker.broken = number
        self.send(worker.agent, Broken(worker.nonce, number, "", awaited))
        return True

    def crash_script(self, worker: SimulatedWorker, code: int = 1, tail: str = "") -> bool:
        """The script that it keeps fails; the worker itself goes on."""
        if not worker.well or worker.phase != "member" or not worker.ring or worker.broken >= worker.ring:
            return False
        worker.broken = worker.ring
        self.send(worker.agent, Crashed(worker.nonce, worker.ring, code, "", tail))
        return True

    def report_stalled(self, worker: SimulatedWorker) -> bool:
        """It waits too long for a member that hangs."""
        if not worker.well or not worker.ring or worker.stalled >= worker.ring:
            return False
        if not any(peer.alive and peer.hung for peer in self.ring_of(worker)):
            return False
        worker.stalled = worker.ring
        self.send(worker.agent, Stalled(worker.nonce, worker.ring))
        return True

    def finish_training(self, worker: SimulatedWorker) -> bool:
        """It comes to the end of its script; its peers in the ring are at the same step and will do so too."""
        if not self.training_is_over or not worker.well or worker.phase != "member" or not worker.ring:
            return False
        ring = self.rings[worker.ring]
        if not ring.finishing and not all(peer.well and peer.ring == worker.ring for peer in self.ring_of(worker)):
            return False
        ring.finishing = True
        worker.phase = "finished"
        self.send(worker.agent, Finished(worker.nonce))
        return True

    def restart(self, agent: SimulatedAgent) -> bool:
        if not agent.restarts or agent.dead or agent.told_end:
            return False
        self.start_worker(agent, agent.restarts.pop(0))
        return True

    # --- time ----------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes: agents beat, the machine is ticked when it wants to be. Messages under way stay under way."""
        end = self.now + seconds
        while True:
            due = min((agent.last_beat + BEAT for agent in self._beating()), default=end)
            deadline = self.machine.next_deadline()
            step = min(end, due, deadline if deadline is not None else end)
            self.now = max(self.now, step)
            for agent in self._beating():
                if self.now >= agent.last_beat + BEAT:
                    agent.last_beat = self.now
                    self.send(agent, Beat())
            self.tick()
            if self.now >= end:
                return

    def tick(self) -> None:
        """Queued beats count as arrived: the server hears what is queued before it judges."""
        for agent in self._beating():
            late = self.patient and self.now >= agent.last_heard + self.timing.lease / 2
            if late or all(isinstance(message, Beat) for message in agent.to_server):
                while self.deliver_to_server(agent):
                    pass
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.carry_out(self.machine.tick(self.now))
            deadline = self.machine.next_deadline()
            assert deadline is None or deadline > self.now, "a deadline lies in the past after a tick"

    def pause(self, seconds: float) -> None:
        """The server stands still; everything that is sent meanwhile waits."""
        self.now += seconds
        for agent in self._beating():
            agent.last_beat = self.now
            self.send(agent, Beat())
        self.deliver_everything()
        self.carry_out(self.machine.tick(self.now))

    def _beating(self) -> list[SimulatedAgent]:
        return [agent for agent in self.agents.values() if agent.connected and not agent.silent and not agent.dead]

    def deliver_everything(self) -> bool:
        moved = False
        for agent in self.agents.values():
            while self.deliver_to_server(agent):
                moved = True
        for agent in self.agents.values():
            while self.deliver_to_agent(agent):
                moved = True
        return moved

    def act(self, *, restart: bool = True) -> bool:
        """Every worker does what it can do next."""
        moved = False
        for agent in self.agents.values():
            while restart and self.restart(agent):
                moved = True
        for worker in list(self.workers.values()):
            if worker.phase == "preparing" and worker.well and restart:
                self.prepare(worker)
                moved = True
            moved |= self.come_back(worker)
            moved |= self.finish_training(worker)
            moved |= self.arrive(worker)
        for number in list(self.rings)[-3:]:
            moved |= self.complete(number)
        for worker in list(self.workers.values()):
            moved |= self.report_formed(worker)
            moved |= self.report_stalled(worker)
            moved |= self.report_broken(worker)
        return moved

    def run(self, seconds: float = 5.0, *, restart: bool = True) -> None:
        """Let everything happen that can, for at least `seconds` after the last thing that happened."""
        quiet_since = self.now
        for _ in range(20_000):
            moved = self.deliver_everything()
            moved |= self.act(restart=restart)
            moved |= self.answer_from_store()
            if moved:
                quiet_since = self.now
                continue
            if self.now >= quiet_since + seconds:
                return
            deadline = self.machine.next_deadline()
            step = 0.25 if deadline is None else min(0.25, max(0.001, deadline - self.now))
            self.advance(step)
        raise AssertionError("the job does not come to rest")

    # --- questions -----------------------------------------------------------------------------------------------

    def holders(self) -> list[SimulatedWorker]:
        """Living workers that hold the state of the last formed generation."""
        return [
            self.workers[nonce]
            for nonce in self.formed.members
            if self.workers[nonce].alive
            and self.formed.generation in (self.workers[nonce].lineage, self.workers[nonce].reported)
        ]

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def size(self) -> tuple[int, int]:
        """The job's `min` and `max` as they are."""
        return self.machine._books.spec.min, self.machine._books.spec.max

    @property
    def last(self) -> Announce:
        return self.announcements[-1]

    @property
    def members(self) -> list[SimulatedWorker]:
        """Of the newest generation, in rank order."""
        return [self.workers[nonce] for nonce in self.rings[self.newest].members]

    @property
    def running(self) -> set[str]:
        """The workers that step in the newest generation's ring."""
        return {worker.nonce for worker in self.workers.values() if worker.alive and worker.ring == self.newest != 0}

    def phase(self, worker: SimulatedWorker) -> str:
        found = [w for w in self.machine.snapshot()["workers"] if w["worker"] == worker.nonce]
        return found[0]["phase"] if found else "unknown"
