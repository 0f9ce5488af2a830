"""A slot's member of the job whose process is the real Horovod's, and lives through generations.

The process knows nothing of the job. It comes to the door, which is this agent's endpoint, each time that it calls
`hvd.init()`: at its start, when its ring has failed under it, and after a commit if it was told that the hosts have changed.
There it is kept until it has a place in a generation that has formed. Everything else the worker concludes from that.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import RingError
from ...rendezvous.meeting.client import GatherTimeout, MeetingClient
from ...rendezvous.messages import (
    Announce,
    Broken,
    Done,
    Evicted,
    Finished,
    Formed,
    Ready,
    Registered,
    Release,
    Released,
    ToWorker,
    Welcome,
)
from ...rendezvous.progress import Progress
from .. import exits
from ..finishing import all_have_finished
from ..reporter import Reporter
from ..threads import in_a_thread
from ..worker import Hooks, Worker
from ..worker_record import WorkerRecord
from .places import Entry, Place, has_lost_the_state, place_of
from .process import HorovodProcess, ProcessHooks, ProcessSettings
from .ring_keys import RingKeys

_MEETING_LIMIT = 290.0  # seconds; the server gives up a generation that has not formed a little later


@dataclass(frozen=True)
class HorovodSettings:
    """What the workers of one agent have in common."""

    agent: str
    shutdown_timeout: float
    process: ProcessSettings
    reporter: Reporter


class HorovodWorker(Worker):
    """It ends with its process, or, if that has ended well, when the job is done."""

    def __init__(self, settings: HorovodSettings, record: WorkerRecord, hooks: Hooks) -> None:
        """Raises OSError if the process cannot be started."""
        super().__init__(record)
        self._settings = settings
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._announce: Announce | None = None
        self._forming: RingKeys | None = None  # of the generation that was announced
        self._place: Place | None = None  # in it; later, that of the process
        self._taken = 0  # the newest generation in which the process was given its place
        self._says_ready = True
        self._holds = 0  # the newest generation in which the process had the state
        self._has_seen_state = False
        self._has_finished = False
        self._is_let_go = False
        self._ended = False
        self._hang_timeout = Welcome(0).hang_timeout
        self._patience: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        process_hooks = ProcessHooks(self._came, self._holds_the_state, self._process_has_ended)
        self._process = HorovodProcess(settings.process, record, process_hooks)

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._has_finished else (self._process.pid,)

    @property
    def is_idle(self) -> bool:
        return self._process.is_at_the_door

    def send(self, message: ToWorker) -> None:
        self.record.told(message)
        if self._ended:
            return
        if isinstance(message, Announce):
            if self._announce is None or message.generation > self._announce.generation:
                self._announced(message)
        elif isinstance(message, Welcome):
            self._hang_timeout = message.hang_timeout
        elif isinstance(message, Release):
            self._released(message)
        elif isinstance(message, Evicted):
            self._evicted()
        elif isinstance(message, (Released, Done)):
            self._let_go()

    def watch_for_death(self) -> None:
        """Its process's end tells."""

    def send_signal(self, number: int) -> None:
        if self._process.has_ended:
            self._end(128 + number)
        else:
            self._process.send_signal(number)

    def progress(self) -> Progress:
        return Progress()

    def extend_lease(self, until: float) -> None:
        """Horovod's processes cannot be kept from stepping."""

    def tail(self) -> str:
        return self._process.tail()

    @property
    def is_drained(self) -> bool:
        return self._process.is_drained

    async def drained(self) -> None:
        await self._process.drained()

    # --- what the server says ---

    def _announced(self, announce: Announce) -> None:
        self._announce = announce
        if self._has_finished:
            if announce.abort:
                # The others go on from a state that is gone here: a fresh process takes it from them.
                self._end(exits.STALE)
        elif self._process.is_at_the_door:
            self._do(self._take_place(announce))
        else:
            self._call(ring_is_broken=announce.abort)

    def _released(self, message: Release) -> None:
        announce, place = self._announce, self._place
        if announce is None or announce.generation != message.generation or message.parked or place is None:
            return
        if self._forming is None or not self._process.is_at_the_door:
            return
        self._taken = message.generation
        self._close_ring()
        self._process.ring, self._forming = self._forming, None
        self._process.open_door(place)

    def _evicted(self) -> None:
        self._announce = None
        if self._has_finished:
            self._end(exits.STALE)
        elif self._process.is_at_the_door:
            self._cancel()
            self._hooks.said(self, Ready(self.record.worker, self.record.lineage))
        else:
            self._says_ready = True
            self._call(ring_is_broken=True)

    def _let_go(self) -> None:
        if self._is_let_go:
            return
        self._is_let_go = True
        self._cancel()
        if self._process.has_ended:
            self._end(0)
            return
        if self._process.is_at_the_door:
            self._process.open_door(None)
        else:
            self._call(ring_is_broken=False)  # it ends when it comes, after a commit
        limit = self._settings.shutdown_timeout
        self._loop.call_later(limit / 2, self._end_process, signal.SIGTERM)
        self._loop.call_later(limit, self._end_process, signal.SIGKILL)

    def _end_process(self, number: int) -> None:
        if not self._process.has_ended:
            self.stop(number)

    # --- between two rings ---

    def _came(self) -> None:
        """The process is at the door."""
        self._cancel()
        announce = self._announce
        if self._is_let_go:
            self._process.open_door(None)
            return
        if not self.record.registered:
            self._hooks.said(self, Registered(self.record.worker))
        if self._says_ready:
            self._says_ready = False
            self._hooks.said(self, Ready(self.record.worker, self.record.lineage))
        elif announce is not None and announce.generation > self._taken:
            self._do(self._take_place(announce))
        else:
            self._hooks.said(self, Broken(self.record.worker, self._taken, "Horovod has left its ring"))

    def _holds_the_state(self) -> None:
        self._holds, self._has_seen_state = self._taken, True

    def _call(self, ring_is_broken: bool) -> None:
        self._do(self._process.keep_calling())
        if ring_is_broken:
            self._process.break_ring()
            limit = self._hang_timeout
            self._patience = self._loop.call_later(limit, self._give_up, limit)

    def _give_up(self, limit: float) -> None:
        self.fault = f"hung: its ring broke, and it has not come for a place in another one within {limit:g} s"
        self._process.send_signal(signal.SIGKILL)

    async def _take_place(self, announce: Announce) -> None:
        self._place = None
        index = next(place.rank for place in announce.places if place.worker == self.record.worker)
        if index < 0:
            return  # it leaves, and is told when it may go
        try:
            entries = await self._meet(announce, index)
        except GatherTimeout as error:
            self._hooks.said(self, Broken(self.record.worker, announce.generation, str(error), error.missing))
            return
        except (RingError, OSError) as error:
            self._hooks.said(self, Broken(self.record.worker, announce.generation, str(error)))
            return
        if has_lost_the_state(entries):
            self._settings.reporter.say_once("no process is left that holds the state of the training")
            self.stop(signal.SIGKILL)
            return
        self._has_seen_state = self._has_seen_state or any(entry.holds for entry in entries)
        self._place = place_of(entries, index)
        self._hooks.said(self, Formed(self.record.worker, announce.generation))
        self.record.rank = self._place.rank

    async def _meet(self, announce: Announce, index: int) -> list[Entry]:
        """What all members of the generation say, in the order of the server's ranks."""
        client = MeetingClient(announce.meeting, self._settings.process.job, announce.generation, announce.secret)
        self._forming = RingKeys(client)
        mine = Entry(self._settings.agent, self.record.local_rank, self._holds, self._has_seen_state)
        said = await in_a_thread(
            lambda: client.gather("place", index, announce.world_size, msgspec.json.encode(mine), _MEETING_LIMIT),
            "meeting",
            stop=lambda: client.abort("the generation was superseded"),
        )
        return [msgspec.json.decode(entry, type=Entry) for entry in said]

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        """In the place of what was being done."""
        self._cancel()
        self._task = self._loop.create_task(what)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._forming is not None:
            self._forming.close()
            self._forming = None

    def _close_ring(self) -> None:
        if self._process.ring is not None:
            self._process.ring.close()

    # --- the end ---

    def _process_has_ended(self, code: int) -> None:
        self._cancel()
        trained = self._taken > 0 and not self._is_let_go and not self.stopped
        announce = self._announce
        if code != 0 or not trained:
            self._end(code)
        elif announce is not None and announce.generation > self._taken and announce.abort:
            self._end(exits.STALE)
        else:
            self._has_finished = True
            self._finishing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        """The job is done when all processes of a generation have ended well; if one fails first, the others go on."""
        ring, place = self._process.ring, self._place
        assert ring is not None and place is not None
        if await all_have_finished(ring.client, place.rank, place.size, "the worker ends"):
            self._hooks.said(self, Finished(self.record.worker))

    def _end(self, code: int) -> None:
        if self._ended:
            return
        self._ended = True
        self._cancel()
        if self._finishing is not None:
            self._finishing.cancel()
        self._close_ring()
        self._hooks.ended(self, code)
