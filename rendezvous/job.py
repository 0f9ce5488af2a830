"""A job on the server: one task that hands its events to the membership machine in order.

All decisions are the machine's; this is the thin layer that brings it events, time and the store's answers, and carries
out the effects that it returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from ..errors import RendezvousError
from .clock import AwakeClock
from .history import History
from .leadership import Mandate
from .logs import about
from .membership.effects import Confirm, Effect, Event, Finish, Persist, PersistDone, Tell
from .membership.facts import Facts
from .membership.machine import Membership
from .membership.members import FormedGeneration, Timing
from .membership.tally import Tally
from .messages import Failed, Hello, JobSpec, ToAgent, ToServer
from .stores.records import JobRecord, JobRecords, RecordConflict
from .stores.store import FenceLost, StoreUnavailable

logger = logging.getLogger(__name__)

INBOX = 10_000  # events; beyond it, agents' connections are read no further
HISTORY = 1000  # events that a job's history shows
_ROUNDS = 20  # of the event loop, in which a message passes from a socket's buffer to the inbox
_STORE_PAUSE = 0.5  # seconds between two attempts at a store that does not answer
_AFTER_A_FAULT = 1.0  # seconds
_COMMAND = 10.0  # seconds for a command of a person or a controller to be taken up

T = TypeVar("T")
Act = Callable[[Membership, float], list[Effect]]
NewMembership = Callable[..., Membership]


class JobOver(RendezvousError):
    """The job has ended, or is ending, and takes no more commands."""


class Connection(Protocol):
    """An agent's connection, as a job needs it."""

    def tell(self, message: ToAgent) -> None:
        """Never blocks and never raises."""

    def end(self, reason: str) -> None:
        """Closes the connection; the agent may come back."""


class Job:
    """One job. `run` is its task; the other methods bring it events, in the order of their calls."""

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        timing: Timing,
        mandate: Mandate,
        clock: AwakeClock,
        new_membership: NewMembership,
    ) -> None:
        self.name = name
        self.history = History(HISTORY)
        self.tally = Tally()
        self.ended_at: float | None = None
        self._spec = spec
        self._timing = timing
        self._new_membership = new_membership
        self._mandate = mandate
        self._records = JobRecords(mandate.store, name, mandate.fence)
        self._kept: Facts | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._clock = clock
        self._inbox: asyncio.Queue[Act] = asyncio.Queue(INBOX)
        self.deserted = asyncio.Event()
        """Set while no agent is connected."""
        self._attached: set[Connection] = set()
        self._connections: dict[str, Connection] = {}
        self._is_abandoned = False
        self._membership: Membership | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failed_at: float | None = None
        """When the machine's last attempt to decide failed, None if it did not."""
        self._persisting: set[asyncio.Task[None]] = set()
        self._persist_in_turn = asyncio.Lock()

    def abandon(self, reason: str) -> None:
        """After `run` has ended: nothing waits for it any more, and its agents are sent away; they may come again."""
        self._is_abandoned = True
        self.history.close()
        while not self._inbox.empty():
            self._inbox.get_nowait()
        for connection in self._attached:
            connection.end(reason)

    @property
    def failure(self) -> Failed | None:
        """How it has failed, if it has."""
        return None if self._membership is None else self._membership.facts.failed

    def snapshot(self) -> dict[str, Any]:
        """What the job looks like, as plain JSON."""
        if self._membership is None:
            return {"job": self.name, "state": "loading"}
        return {"job": self.name, **self._membership.snapshot()}

    async def said(self, agent: str, connection: Connection, message: ToServer) -> None:
        if self._is_abandoned:
            connection.end("the job has ended here")
            return
        self._attached.add(connection)
        self.deserted.clear()
        await self._inbox.put(partial(self._said, agent, connection, message))

    async def closed(self, agent: str, connection: Connection) -> None:
        self._attached.discard(connection)
        if not self._attached:
            self.deserted.set()
        if not self._is_abandoned:
            await self._inbox.put(partial(self._closed, agent, connection))

    def is_full(self, agent: str, limit: int) -> bool:
        """Whether `agent` would be one too many; one that is connected already may come again."""
        return len(self._attached) >= limit and agent not in self._connections

    async def command(self, act: Act) -> None:
        """Returns when the machine has taken it up, durably. Raises what `act` raises, or TimeoutError."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hand_in() -> None:
            await self._inbox.put(partial(self._command, act, taken))
            await taken

        await asyncio.wait_for(hand_in(), _COMMAND)
        await self.kept()

    async def kept(self) -> None:
        """Until everything that must outlive this server is durable. TimeoutError if the store takes too long."""
        if self._keeping is not None:
            await asyncio.wait_for(asyncio.shield(self._keeping), _COMMAND)

    async def remove(self) -> None:
        """Forgets the job's record in the store. StoreUnavailable, FenceLost."""
        await self._records.remove()

    async def run(self) -> None:
        """Ends only when it is cancelled, or with the store's record unreadable."""
        try:
            membership = self._membership = await self._load()
            if membership.over and self.ended_at is None:
                self.ended_at = self._clock.now()
            while True:
                self._take_up(membership, await self._inbox.get())
                await self._look_at_the_clock(membership)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in [*self._persisting, *([self._keeping] if self._keeping else [])]:
                task.cancel()

    async def _load(self) -> Membership:
        record = await self._until_the_store_answers(self._records.load)
        self._kept = record.facts
        if record.ended_at:
            self.ended_at = self._clock.now() - max(0.0, time.time() - record.ended_at)
        return self._new_membership(
            self._spec, self._timing, _formed(record), record.done, facts=record.facts, term=self._mandate.term
        )

    def _take_up(self, membership: Membership, *acts: Act) -> None:
        """These and all that are queued, and one decision about them."""
        with membership.hearing_only():
            for act in acts:
                self._handle(membership, act)
            while not self._inbox.empty():
                self._handle(membership, self._inbox.get_nowait())
        self._decide(membership, lambda machine, now: machine.decide(now))

    def _handle(self, membership: Membership, act: Act) -> None:
        if not self._mandate.holds():
            return  # another server may decide by now
        for effect in act(membership, self._clock.now()):
            self._carry_out(effect)

    def _decide(self, membership: Membership, act: Act) -> None:
        self._failed_at = None
        try:
            self._handle(membership, act)
        except Exception:
            logger.exception("job %s: the membership machine failed to decide", self.name)
            self._failed_at = self._clock.now()
        if membership.facts != self._kept and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.ensure_future(self._keep_facts(membership))

    async def _keep_facts(self, membership: Membership) -> None:
        while (facts := membership.facts) != self._kept:
            ended_at = time.time() if facts.failed else 0.0
            await self._until_the_store_answers(partial(self._records.keep, facts, ended_at))
            self._kept = facts

    async def _look_at_the_clock(self, membership: Membership) -> None:
        """Deadlines are judged after all input that has arrived, also what still lies in the sockets."""
        deadline = membership.next_deadline()
        if deadline is not None and self._clock.now() >= deadline:
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
                self._take_up(membership)
            self._decide(membership, lambda machine, now: machine.tick(now))
            deadline = membership.next_deadline()
        self._wake_at(deadline if self._failed_at is None else self._failed_at + _AFTER_A_FAULT)

    def _wake_at(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            # A little late rather than early, and never without a pause: the clock may stand still.
            delay = max(deadline - self._clock.now(), 0.0) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        if self._inbox.empty():
            self._inbox.put_nowait(lambda machine, now: [])

    def _said(
        self, agent: str, connection: Connection, message: ToServer, membership: Membership, now: float
    ) -> list[Effect]:
        current = self._connections.get(agent)
        if isinstance(message, Hello):
            self._connections[agent] = connection
            if current is not None and current is not connection:
                current.end("the agent has come back on another connection")
        elif current is not connection:
            return []
        try:
            return membership.said(agent, message, now)
        except Exception:
            logger.exception("job %s: the membership machine failed at %r of agent %s", self.name, message, agent)
            connection.end("internal error of the rendezvous server")
            return []

    def _closed(self, agent: str, connection: Connection, membership: Membership, now: float) -> list[Effect]:
        if self._connections.get(agent) is not connection:
            return []
        del self._connections[agent]
        return membership.closed(agent, now)

    def _command(self, act: Act, taken: asyncio.Future[None], membership: Membership, now: float) -> list[Effect]:
        if taken.done():
            return []
        try:
            effects = act(membership, now)
        except Exception as error:
            taken.set_exception(error)
            return []
        taken.set_result(None)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Tell):
            connection = self._connections.get(effect.agent)
            if connection is not None:
                connection.tell(effect.message)
        elif isinstance(effect, Event):
            logger.info("job %s: %s", self.name, effect.text, extra=about(self.name, effect))
            self.history.add(effect)
            self.tally.take(effect)
        elif isinstance(effect, Finish):
            self.ended_at = self._clock.now()
            logger.info(
                "job %s: %s",
                self.name,
                f"{effect.state}, code {effect.code} {effect.reason}".strip(),
                extra=about(self.name),
            )
        else:
            task = asyncio.ensure_future(self._persist(effect))
            self._persisting.add(task)
            task.add_done_callback(self._persisting.discard)

    async def _persist(self, effect: Persist | PersistDone | Confirm) -> None:
        """Beside the events, which must not wait for the store; one change at a time."""
        async with self._persist_in_turn:
            await self._inbox.put(await self._outcome(effect))

    async def _outcome(self, effect: Persist | PersistDone | Confirm) -> Act:
        if isinstance(effect, Confirm):
            await self._until_the_store_answers(self._confirm)
            return lambda machine, now: machine.confirmed(now)
        if isinstance(effect, PersistDone):
            await self._until_the_store_answers(partial(self._records.move_to_done, time.time()))
            return lambda machine, now: machine.persisted_done(now)
        generation, members = effect.generation, [*effect.members]
        try:
            await self._until_the_store_answers(
                partial(self._records.move_to_generation, generation, members, effect.previous)
            )
        except RecordConflict as conflict:
            logger.warning("job %s: generation %d was refused: %s", self.name, generation, conflict)
            actual = _formed(conflict.found)
            return lambda machine, now: machine.persist_refused(generation, actual, now)
        return lambda machine, now: machine.persisted(generation, now)

    async def _confirm(self) -> None:
        fence = self._mandate.fence
        if fence is not None:
            held = await self._mandate.store.get(fence.key)
            if held is None or held.version != fence.version:
                raise FenceLost("another server leads")

    async def _until_the_store_answers(self, call: Callable[[], Awaitable[T]]) -> T:
        """Without the store nothing can be decided; the ring that is there goes on without us meanwhile."""
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                self.tally.store_errors += 1
                text = "job %s: the store does not answer, trying again: %s"
                logger.warning(text, self.name, error, extra=about(self.name))
                await asyncio.sleep(_STORE_PAUSE)
            except FenceLost as error:
                logger.warning("job %s: this server may not decide any more: %s", self.name, error)
                self._mandate.lose()
                await asyncio.get_running_loop().create_future()  # ends with the job, which ends with the term


def _formed(record: JobRecord) -> FormedGeneration | None:
    return FormedGeneration(record.formed, tuple(record.members)) if record.formed else None
