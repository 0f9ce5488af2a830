"""A slot's member of the job whose process is the real Horovod's, and lives through generations.

The process knows nothing of the job. It comes to the door, which is this agent's endpoint, each time that it calls
`hvd.init()`: at its start, when its ring has failed under it, and after a commit if it was told that the hosts have changed.
There it is kept until it has a place in a generation that has formed. Everything else the worker concludes from that.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...errors import RendezvousError, RingError
from ...rendezvous import worker_environment
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
)
from ...rendezvous.parent_death import die_with_parent
from ...rendezvous.progress import Progress
from .. import exits
from ..child_process import ChildProcess
from ..guarding import Guard
from ..output.log_folders import worker_folder
from ..output.prefixes import Label
from ..output.room import Output
from ..program import Program
from ..reporter import Reporter
from ..threads import in_a_thread
from ..worker import Hooks, Worker
from ..worker_record import WorkerRecord
from .endpoint import Endpoint
from .environment import process_environment
from .notifying import notify
from .pickles import Notified, read_addresses
from .places import Entry, Place, has_lost_the_state, place_of
from .ring_keys import RingKeys

_MODULE = "elastic_launch.trainer.horovod.main"
_MEETING_LIMIT = 290.0  # seconds; the server gives up a generation that has not formed a little later
_FINISH_LIMIT = 3600.0  # seconds until it is asked again whether the others' processes have ended
_CALL_PERIOD = 1.0  # seconds between two calls to a process that has not come yet


@dataclass(frozen=True)
class HorovodSettings:
    """What the workers of one agent have in common. `hostname` is this agent's, for Horovod."""

    agent: str
    job: str
    host: str
    hostname: str
    address: str
    shutdown_timeout: float
    program: Program
    python: str
    environ: Mapping[str, str]
    output: Output
    guard: Guard
    endpoint: Endpoint
    log_dir: Path | None
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
        self._places: Mapping[int, Place] = {}  # by generation
        self._taken = 0  # the newest generation in which the process was given a place
        self._place: Place | None = None
        self._place_is_news = False
        self._ring: RingKeys | None = None  # of the generation that was taken
        self._forming: RingKeys | None = None  # of the one that was announced
        self._door: asyncio.Future[Place | None] | None = None
        self._says_ready = True
        self._holds = 0
        self._has_seen_state = False
        self._notified: Notified | None = None
        self._cutting = asyncio.Event()
        self._has_finished = False
        self._ended = False
        self._is_let_go = False
        self._task: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._token = settings.endpoint.admit(self)
        try:
            self._process = ChildProcess(
                self._spawn,
                settings.output,
                settings.guard,
                lambda: self.record.label(settings.host),
                worker_folder(settings.log_dir, settings.job, settings.host, record.local_rank, record.worker),
                self._process_has_ended,
                mark=f"{worker_environment.MARK}={record.worker}",
            )
        except BaseException:
            settings.endpoint.forget(self._token)
            raise

    # --- the worker, for the agent ---

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._has_finished else (self._process.pid,)

    @property
    def is_idle(self) -> bool:
        return self._door is not None

    def send(self, message: ToWorker) -> None:
        self.record.told(message)
        if self._ended:
            return
        if isinstance(message, Announce):
            if self._announce is None or message.generation > self._announce.generation:
                self._announced(message)
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
            return
        if self._door is not None:
            self._do(self._take_place(announce))
        else:
            self._call(cut=announce.abort)

    def _released(self, message: Release) -> None:
        announce = self._announce
        if announce is None or announce.generation != message.generation or message.parked:
            return
        place = self._places.get(message.generation)
        if place is None or self._door is None or self._taken >= message.generation:
            return
        self._taken, self._place, self._place_is_news = message.generation, place, True
        self._close_ring()
        self._ring, self._forming = self._forming, None
        self._open_door(place)

    def _evicted(self) -> None:
        if self._has_finished:
            self._end(exits.STALE)
            return
        self._announce = None
        if self._door is not None:
            self._cancel()
            self._hooks.said(self, Ready(self.record.worker, self.record.lineage))
        else:
            self._says_ready = True
            self._call(cut=True)

    def _let_go(self) -> None:
        if self._is_let_go:
            return
        self._is_let_go = True
        self._cancel()
        if self._process.has_ended:
            self._end(0)
            return
        if self._door is not None:
            self._open_door(None)
        else:
            self._process.send_signal(signal.SIGTERM)
        self._loop.call_later(self._settings.shutdown_timeout, self._process.send_signal, signal.SIGKILL)

    # --- between two rings ---

    def _call(self, cut: bool) -> None:
        """Have the process come to the door: at its next commit, or at once, as its ring is broken."""
        if cut:
            self._cutting.set()
        self._do(self._keep_calling())

    async def _keep_calling(self) -> None:
        """What it hears while it is between two rings, or before its elastic function, is forgotten there."""
        while True:
            if self._notified is not None:
                try:
                    await notify(self._notified, time.time())
                except RendezvousError as error:
                    self._settings.reporter.say_once(f"slot {self.record.local_rank}: {error}")
            await asyncio.sleep(_CALL_PERIOD)

    async def _take_place(self, announce: Announce) -> None:
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
            self._process.send_signal(signal.SIGKILL)
            return
        place = place_of(entries, index)
        self._has_seen_state = self._has_seen_state or any(entry.holds for entry in entries)
        self._places = {announce.generation: place}
        self._hooks.said(self, Formed(self.record.worker, announce.generation))
        self.record.rank = place.rank

    async def _meet(self, announce: Announce, index: int) -> list[Entry]:
        """What all members of the generation say, in the order of the server's ranks."""
        client = MeetingClient(announce.meeting, self._settings.job, announce.generation, announce.secret)
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
        if self._forming is not None:
            self._forming.close()
            self._forming = None

    def _close_ring(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    # --- the door ---

    async def _come(self) -> Place | None:
        """The process has come to the door. Its place in the next generation, or None if it is to end."""
        if self._is_let_go:
            return None
        if self._door is not None:
            self._door.cancel()  # a request that the process has given up
        door = self._door = self._loop.create_future()
        self._cancel()
        self._cutting.clear()
        if not self.record.registered:
            self._hooks.said(self, Registered(self.record.worker))
        if self._says_ready:
            self._says_ready = False
            self._hooks.said(self, Ready(self.record.worker, self.record.lineage))
        elif self._announce is not None and self._announce.generation > self._taken:
            self._do(self._take_place(self._announce))
        else:
            self._hooks.said(self, Broken(self.record.worker, self._taken, "Horovod has left its ring"))
        return await door

    def _open_door(self, place: Place | None) -> None:
        door, self._door = self._door, None
        if door is not None and not door.done():
            door.set_result(place)

    # --- what the process asks of the endpoint ---

    async def get(self, scope: str, key: str) -> bytes | None:
        if scope == "worker" and key == "door":
            place = await self._come()
            answer = {"leaves": place is None, "variables": {} if place is None else place.variables()}
            return json.dumps(answer).encode()
        if scope == "worker" and key == "cut":
            return await self._cut()
        if scope == "rank_and_size":
            return await self._rank_and_size()
        return await self._ring.get(scope, key) if self._ring is not None else None

    async def put(self, scope: str, key: str, value: bytes) -> None:
        if scope == "worker" and key == "holds":
            self._holds = self._taken
            self._has_seen_state = True
        elif scope == "worker_addresses":
            self._notified = read_addresses(value)
        elif self._ring is not None:
            await self._ring.put(scope, key, value)
        else:
            raise RingError(f"{scope}/{key}: the process has no place in a ring")

    async def delete(self, scope: str, key: str) -> None:
        if self._ring is not None:
            await self._ring.delete(scope, key)

    async def _rank_and_size(self) -> bytes | None:
        """The process has its place from the door already, unless it calls `hvd.init()` around the door."""
        place = self._place if self._place_is_news else await self._come()
        self._place_is_news = False
        if place is None:
            self._process.send_signal(signal.SIGTERM)  # Horovod would abort if it were told that it has none
            await self._loop.create_future()
        assert place is not None
        return place.in_horovods_words()

    async def _cut(self) -> bytes:
        """The addresses of a ring whose sockets the process is to shut, once that is so."""
        await self._cutting.wait()
        self._cutting.clear()
        return json.dumps(sorted(self._ring.addresses) if self._ring is not None else []).encode()

    # --- the process ---

    def _spawn(self, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        settings, record = self._settings, self.record
        program = settings.program
        flag = ("--module",) if program.kind == "module" else ()
        environ = process_environment(
            settings.environ,
            settings.address,
            settings.hostname,
            record.local_rank,
            settings.endpoint.variables(self._token),
        )
        return subprocess.Popen(
            (settings.python or sys.executable, "-u", "-m", _MODULE, *flag, program.name, *program.arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**environ, worker_environment.MARK: record.worker},
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )

    def _process_has_ended(self, code: int) -> None:
        self._cancel()
        self._open_door(None)
        trains = self._taken > 0 and not self._is_let_go and not self.record.leaving and not self.stopped
        if code != 0 or not trains:
            self._end(code)
            return
        announce = self._announce
        if announce is not None and announce.generation > self._taken and announce.abort:
            self._end(exits.STALE)
            return
        self._has_finished = True
        self._finishing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        """The job is done when all processes of one generation have ended well; if one fails first, the others are needed."""
        ring, place = self._ring, self._place
        assert ring is not None and place is not None
        client = ring.client
        while True:
            try:
                await in_a_thread(
                    lambda: client.gather("finished", place.rank, place.size, b"", _FINISH_LIMIT),
                    "finishing",
                    stop=lambda: client.abort("the worker ends"),
                )
            except GatherTimeout:
                continue
            except RingError:
                return  # whoever served the meeting point is gone: another generation follows
            self._hooks.said(self, Finished(self.record.worker))
            return

    def _end(self, code: int) -> None:
        if self._ended:
            return
        self._ended = True
        self._cancel()
        if self._finishing is not None:
            self._finishing.cancel()
        self._close_ring()
        self._settings.endpoint.forget(self._token)
        self._hooks.ended(self, code)
