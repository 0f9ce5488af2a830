"""A worker's part in the protocol: it waits for generations, forms their rings, and knows what it may claim.

Invariants kept here:
- `lineage` is the newest generation that this worker formed and that the server made durable; 0 from the first byte of a
  copy until the generation in which it was received is durable.
- Nothing of the state changes between a failed agreement and the release of the generation that decides it.
- A worker takes part in a planned generation only at a boundary, where all code between two steps has run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ..errors import RingError, StateMismatchError
from ..rendezvous.meeting.client import GatherTimeout, MeetingClient
from ..rendezvous.messages import Announce, Broken, Formed, Ready, Released, Stalled
from ..rendezvous.progress import Progress
from .ballot import join_ballots
from .control import Control
from .exchange import Action, Decision, Report, decide
from .probe import reached
from .ring.guard import came_from_ring
from .ring.ring import MakeRing, Ring, RingOptions
from .state_exchange import StateExchange

_LEASE_GLANCE = 0.02  # seconds
JOINER_LIMIT = 20.0  # seconds that holders wait in a forming ring for a joiner, which has nothing else to do


class Leave(SystemExit):
    """This worker is to exit with 0: it was released, or the job is done."""

    def __init__(self, released: Released | None) -> None:
        super().__init__(0)
        self.released = released


class Stale(SystemExit):
    """This worker has missed what its script cannot make up for (it is in the middle of a unit, or in an epoch that is over):
    it must start afresh."""

    def __init__(self) -> None:
        super().__init__(66)


class _Behind(Exception):
    """The others have formed generations without this worker, which is not at a boundary."""


@dataclass(frozen=True)
class Change:
    """A membership change that this worker has been through. `pause_seconds` is how long it did not step for it.

    `phases` says when each part of it was over, in seconds from the start of the pause: `broken` (the old ring, by a loss
    alone) and `heard` (the announcement), which may lie before it, then `announced`, `exchanged`, `connected`, `copied`,
    `released`.
    """

    generation: int
    rank: int
    world_size: int
    previous_world_size: int
    cause: str
    reason: str
    pause_seconds: float
    step: int
    phases: dict[str, float] = field(default_factory=dict)


@dataclass
class Pending:
    """The agreement that failed under a member, and what it can contribute to passing it all the same.

    `result` is what it gives if it is passed; forming may be tried again with the same claims all the same.
    """

    kind: str = ""
    stands_behind: bool = False
    ballot: bytes = b""
    result: bytes = b""


class Member:
    """One worker as a member of generations. Used by the main thread, but for the callbacks of the control thread."""

    def __init__(self, control: Control, state: StateExchange, make_ring: MakeRing) -> None:
        self.control = control
        self.state = state
        self._make_ring = make_ring
        self.ring: Ring | None = None
        self.lineage = 0
        self.agreed = 0
        self.result = b""
        self.leave_agreed = False
        self.on_change: Callable[[Change], None] = lambda change: None
        self.before_leaving: Callable[[Released | None], None] = lambda released: None
        self.step_number: Callable[[], int] = lambda: 0
        self._reported = 0
        self._has_stepped = False
        self._tried = 0
        self._forming: Ring | None = None
        self._stalled: set[int] = set()
        self._evictions = 0
        self._lock = threading.Lock()
        control.on_announce = self._announced
        control.on_evicted = self._evicted
        control.on_ending = self._ending
        control.check_for_hang = self._check_for_hang

    # --- for the step loop ---

    @property
    def generation(self) -> int:
        return self.ring.generation if self.ring is not None else 0

    @property
    def change_wanted(self) -> bool:
        """A later generation has been announced, or this worker may go without one."""
        announced = self.control.announced
        return self.control.may_leave is not None or (announced is not None and announced.generation > self.generation)

    def boundary(self) -> None:
        """Be in an intact ring that may step, and leave it if that was agreed. Only where no step is in progress."""
        while True:
            ring = self.ring
            if ring is None or ring.guard.broken is not None or self.leave_agreed:
                self._form(Pending(), at_boundary=True)
            elif self._parked(ring):
                self._wait_while_parked(ring)
            else:
                return

    def recover(self, pending: Pending) -> Action:
        """The ring broke outside a boundary: form the next one, and say what becomes of the pending agreement.

        A worker that has become stale is told `REDO` in the middle of a step, and joins again at the boundary that follows;
        in the middle of a unit it raises `Stale`.
        """
        try:
            return self._form(pending, at_boundary=False)
        except _Behind:
            if pending.kind == "unit":
                raise Stale() from None
            return Action.REDO

    def passed(self, result: bytes) -> None:
        """An agreement was passed; `result` is what a member one short would need."""
        self.agreed += 1
        self.result = result

    def wait_for_lease(self, ring: Ring) -> None:
        """A ring of one cannot tell a server that is gone from a line of its own that is cut.

        While no server counts it in, and none says that nobody decides, others may go on without it: so it does not step.
        Raises `RingError` if the ring ends meanwhile.
        """
        told = False
        while ring.world_size == 1 and not self.control.may_step_alone():
            if ring.guard.broken is not None:
                raise RingError(ring.guard.broken)
            if not told:
                print(
                    "elastic: no server counts this worker in: it waits, alone in its ring", file=sys.stderr, flush=True
                )
                told = True
            time.sleep(_LEASE_GLANCE)

    def close(self) -> None:
        """Leave the ring for good."""
        if self.ring is not None:
            self.ring.close()

    # --- forming ---

    def _form(self, pending: Pending, at_boundary: bool) -> Action:
        started = time.monotonic()
        old = self.ring
        previous = old.world_size if old is not None else 0
        broken_at = old.guard.broken_at if old is not None else None
        if old is not None and old.guard.broken is not None:
            self._say_broken(old.generation, old.guard.broken)
        if self.lineage == 0:
            self.control.send(Ready(self.control.identity.worker, 0, self.state.newest_checkpoint()))
        while True:
            announce, rank = self._next_announcement(at_boundary)
            phases = {"heard": self.control.announced_at - started, "announced": time.monotonic() - started}
            if broken_at is not None:
                phases["broken"] = broken_at - started
            if self.ring is not None:
                self.ring.close()
                self.ring = None
            action = self._try(announce, rank, pending, started, phases)
            if action is None or not self._await_release(announce):
                continue
            phases["released"] = time.monotonic() - started
            with self._lock:
                ring, self._forming = self._forming, None
                self.ring = ring
            self.lineage = announce.generation
            self.leave_agreed = False
            self._has_stepped = True
            self.write_progress()
            change = Change(
                generation=announce.generation,
                rank=rank,
                world_size=announce.world_size,
                previous_world_size=previous,
                cause=announce.cause,
                reason=announce.reason,
                pause_seconds=time.monotonic() - started,
                step=self.step_number(),
                phases=phases,
            )
            try:
                self.on_change(change)
            except Exception as error:
                if ring is None or ring.guard.broken is None or not came_from_ring(error):
                    raise
                self._say_broken(ring.generation, ring.guard.broken)
                continue  # a callback's own collective met the next change
            return action

    def _next_announcement(self, at_boundary: bool) -> tuple[Announce, int]:
        """The newest announcement that this worker can follow from where it is. Ends with `Leave` when it may go."""
        with self.control.changed:
            while True:
                if self.control.done:
                    raise self._leave(None)
                if self.control.may_leave is not None:
                    raise self._leave(self.control.may_leave)
                self._answer_eviction()
                announce = self.control.announced
                if announce is not None and announce.generation > self._tried:
                    rank = self.control.rank_in(announce)
                    self._note_lineage()
                    if not at_boundary and announce.formed > self.lineage:
                        raise _Behind()
                    if rank is not None and rank >= 0 and (announce.abort or at_boundary):
                        self._tried = announce.generation
                        return announce, rank
                self.control.changed.wait()  # ends at the latest with the agent, which the control thread notices

    def _try(
        self, announce: Announce, rank: int, pending: Pending, started: float, phases: dict[str, float]
    ) -> Action | None:
        """Form `announce`; None if it failed or was overtaken, which has been reported then."""
        reached("announced", announce.generation)
        meeting = None
        if announce.meeting:
            meeting = MeetingClient(
                announce.meeting, self.control.identity.job, announce.generation, announce.secret, timeout=30.0
            )
        options = RingOptions(
            address=self.control.identity.address,
            backend=self.control.identity.backend,
            forming_limit=self.control.hang_timeout,
            operation_limit=self.control.hang_timeout * 1.1 + 10,
        )
        ring = self._make_ring(announce.generation, rank, announce.world_size, options, meeting)
        with self._lock:
            self._forming = ring
        awaited: list[int] = []
        try:
            self._check_not_overtaken(announce)
            if self.lineage == announce.formed:
                ring.connect()  # meanwhile; others wait until the holders are there, which may take a step or an evaluation
            reached("connecting", announce.generation)
            report = self._report(announce, pending, ring.kind)
            reports = [report] if meeting is None else self._gather(meeting, announce, rank, report)
            phases["exchanged"] = time.monotonic() - started
            reached("exchanging", announce.generation)
            decision = decide(reports)
            self._check_fit(decision, reports, rank, meeting)
            ring.form()
            phases["connected"] = time.monotonic() - started
            action = decision.actions[rank]
            if action in (Action.COPY, Action.RESTORE):
                self.lineage = 0
            epoch = self.state.epoch()
            self.state.bring_together(ring, decision, announce.secret, self.control.identity.address)
            phases["copied"] = time.monotonic() - started
            if self._has_stepped and self.state.epoch() != epoch:
                raise Stale()  # its script's own variables are of an epoch that is over
            self._take_results(action, decision, reports, pending)
            if action in (Action.APPLY, Action.TAKE_RESULT):
                reached("applying", announce.generation)
            if action in (Action.COPY, Action.RESTORE):
                self.agreed = reports[decision.sources[0]].agreed
                self.result = reports[decision.sources[0]].result
            self._reported = announce.generation
            self.control.send(Formed(self.control.identity.worker, announce.generation, self.step_number()))
            reached("formed", announce.generation)
            return action
        except GatherTimeout as error:
            awaited, reason = error.missing, str(error)
        except RingError as error:
            reason = str(error)
        with self._lock:
            self._forming = None
        ring.abort("forming failed")
        ring.close()
        if not self._overtaken(announce):
            self.control.send(Broken(self.control.identity.worker, announce.generation, reason, awaited))
        return None

    def _report(self, announce: Announce, pending: Pending, ring: str) -> Report:
        restoring = announce.cause == "restored"
        fresh = restoring or announce.formed == 0
        checkpoint = self.state.newest_checkpoint() if fresh else 0
        return Report(
            worker=self.control.identity.worker,
            lineage=0 if restoring else self.lineage,
            agreed=self.agreed,
            pending=pending.kind,
            stands_behind=pending.stands_behind,
            structure=self.state.structure_digest(),
            digest=self.state.digest() if fresh and not checkpoint and announce.world_size > 1 else "",
            result=self.result,
            ballot=pending.ballot,
            checkpoint=checkpoint,
            ring=ring,
        )

    def _gather(self, meeting: MeetingClient, announce: Announce, rank: int, report: Report) -> list[Report]:
        holders = announce.world_size - announce.joiners
        started = time.monotonic()
        while True:
            try:
                values = meeting.gather(
                    "report", rank, announce.world_size, msgspec.msgpack.encode(report), JOINER_LIMIT
                )
                return [msgspec.msgpack.decode(value, type=Report) for value in values]
            except GatherTimeout as timeout:
                if self.lineage == announce.formed != 0 and (
                    any(missing >= holders for missing in timeout.missing)
                    or time.monotonic() - started > self.control.hang_timeout
                ):
                    raise  # a joiner waits for the holders as long as they are in their step; the server ends that

    def _check_fit(self, decision: Decision, reports: list[Report], rank: int, meeting: MeetingClient | None) -> None:
        if not decision.odd or meeting is None:
            return
        lead = decision.sources[0]
        if rank in decision.odd:
            if reports[rank].ring != reports[lead].ring:
                raise StateMismatchError(
                    f"this worker's ring is {reports[rank].ring}, the job's is {reports[lead].ring}: give all agents the same"
                    " --backend (ELASTIC_BACKEND) and the same script, and let either all workers have a GPU or none"
                )
            difference = self.state.explain_structure(meeting.get("structure", JOINER_LIMIT))
            raise StateMismatchError(f"this worker's model does not fit the job's: {difference}")
        if rank == lead:
            meeting.set("structure", self.state.structure_bytes())
        raise RingError(f"ranks {decision.odd} were rejected: their ring or their model does not fit")

    def _take_results(self, action: Action, decision: Decision, reports: list[Report], pending: Pending) -> None:
        if action not in (Action.APPLY, Action.TAKE_RESULT):
            return
        if decision.result_from is not None:
            pending.result = reports[decision.result_from].result
        else:
            pending.result = join_ballots([reports[rank].ballot for rank in decision.sources])

    def _await_release(self, announce: Announce) -> bool:
        """Whether the generation became durable; False if it was overtaken."""
        with self.control.changed:
            while self.control.released_generation < announce.generation:
                if self._overtaken(announce):
                    break  # or this worker may go, which the next wait for an announcement sees
                self.control.changed.wait()  # ends at the latest with the agent
            else:
                return True
        with self._lock:
            ring, self._forming = self._forming, None
        if ring is not None:
            ring.close()
        return False

    # --- helpers ---

    def _note_lineage(self) -> None:
        """A generation that this worker has reported counts once it is durable, whether or not the release was heard."""
        if self._reported and self.control.durable_generation == self._reported:
            self.lineage = self._reported

    def _parked(self, ring: Ring) -> bool:
        return self.control.parked and self.control.released_generation == ring.generation

    def _wait_while_parked(self, ring: Ring) -> None:
        with self.control.changed:
            while self._parked(ring) and ring.guard.broken is None and not self.change_wanted:
                if self.control.done or self.control.may_leave is not None:
                    raise self._leave(self.control.may_leave)
                self.control.changed.wait()  # ends at the latest with the agent
            self.leave_agreed = self.leave_agreed or self.change_wanted

    def _answer_eviction(self) -> None:
        if self._evictions != self.control.evictions:
            self._evictions = self.control.evictions
            self._note_lineage()
            self.control.send(Ready(self.control.identity.worker, self.lineage, self.state.newest_checkpoint()))

    def _leave(self, released: Released | None) -> Leave:
        self.before_leaving(released)
        return Leave(released)

    def _overtaken(self, announce: Announce) -> bool:
        newest = self.control.announced
        return (
            (newest is not None and newest.generation > announce.generation)
            or self._evictions != self.control.evictions
            or self.control.done
            or self.control.may_leave is not None
        )

    def _check_not_overtaken(self, announce: Announce) -> None:
        if self._overtaken(announce):
            raise RingError(f"generation {announce.generation} was overtaken")

    def _say_broken(self, generation: int, reason: str) -> None:
        announced = self.control.announced
        if announced is None or announced.generation <= generation or not announced.abort:
            self.control.send(Broken(self.control.identity.worker, generation, reason))

    def write_progress(self) -> None:
        """Show the agent where this worker is."""
        ring = self.ring
        if ring is not None:
            self.control.progress(
                Progress(ring.generation, ring.rank, ring.world_size, self.step_number() + 1, self.state.samples())
            )

    # --- on the control thread ---

    def _announced(self, announce: Announce) -> None:
        with self._lock:
            forming, ring = self._forming, self.ring
        unreleased = forming is not None and forming.generation > self.control.released_generation
        if forming is not None and forming.generation < announce.generation and (unreleased or announce.abort):
            forming.abort(f"overtaken by generation {announce.generation}: {announce.reason}")
        if announce.abort and ring is not None and ring.generation < announce.generation:
            ring.abort(announce.reason)

    def _ending(self) -> None:
        """The job is done, or this worker may go: whatever it waits for in a forming ring, it need not."""
        with self._lock:
            forming = self._forming
        if forming is not None and forming.generation > self.control.released_generation:
            forming.abort("this worker may go")

    def _evicted(self, reason: str) -> None:
        with self._lock:
            forming, ring = self._forming, self.ring
        for each in (forming, ring):
            if each is not None:
                each.abort(f"this worker was evicted: {reason}")

    def _check_for_hang(self, limit: float) -> None:
        ring = self.ring
        if ring is None or ring.generation in self._stalled:
            return
        waited = ring.guard.longest_wait()
        if waited > limit:
            self._stalled.add(ring.generation)
            self.control.send(Stalled(self.control.identity.worker, ring.generation, waited))
