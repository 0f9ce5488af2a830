"""One process that trains with the real Horovod: what it asks of the endpoint, and what it can be told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import RendezvousError, RingError
from ...rendezvous import worker_environment
from ...rendezvous.parent_death import die_with_parent
from ..child_process import ChildProcess
from ..guarding import Guard
from ..output.log_folders import worker_folder
from ..output.room import Output
from ..program import Program
from ..worker_record import WorkerRecord
from .endpoint import Endpoint
from .environment import process_environment
from .notifying import notify
from .pickles import Notified, read_addresses
from .places import Place
from .ring_keys import RingKeys

_MODULE = "elastic_launch.trainer.horovod.main"
_CALL_PERIOD = 1.0  # seconds between two calls to a process that has not come yet


@dataclass(frozen=True)
class ProcessSettings:
    """What the processes of one agent have in common. `hostname` is this agent's, for Horovod; `python` as in `Options`."""

    job: str
    host: str
    hostname: str
    address: str
    program: Program
    python: str
    environ: Mapping[str, str]
    output: Output
    guard: Guard
    endpoint: Endpoint
    log_dir: Path | None


@dataclass(frozen=True)
class ProcessHooks:
    """`came`: it is at the door. `holds`: it has the state of rank 0. `ended`: with an exit code, 128 + n for signal n."""

    came: Callable[[], None]
    holds: Callable[[], None]
    ended: Callable[[int], None]


class HorovodProcess:
    """From its start until `ProcessHooks.ended`. `ring` is where the keys of the ring that it builds, or has, are kept."""

    def __init__(self, settings: ProcessSettings, record: WorkerRecord, hooks: ProcessHooks) -> None:
        """Raises OSError if it cannot be started."""
        self.ring: RingKeys | None = None
        self._settings = settings
        self._record = record
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._door: asyncio.Future[Place | None] | None = None
        self._place: Place | None = None  # that it has got at the door and not asked for again
        self._notified: Notified | None = None
        self._calls = 0
        self._ring_is_broken = asyncio.Event()
        self._token = settings.endpoint.admit(self)
        try:
            self._process = ChildProcess(
                self._spawn,
                settings.output,
                settings.guard,
                lambda: record.label(settings.host),
                worker_folder(settings.log_dir, settings.job, settings.host, record.local_rank, record.worker),
                self._ended,
                mark=f"{worker_environment.MARK}={record.worker}",
            )
        except BaseException:
            settings.endpoint.forget(self._token)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    @property
    def is_at_the_door(self) -> bool:
        return self._door is not None

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def tail(self) -> str:
        return self._process.tail()

    @property
    def is_drained(self) -> bool:
        return self._process.is_drained

    async def drained(self) -> None:
        await self._process.drained()

    # --- what it is told ---

    def open_door(self, place: Place | None) -> None:
        """The process builds its ring there, or ends where there is none."""
        door, self._door, self._place = self._door, None, place
        if door is not None and not door.done():
            door.set_result(place)

    def break_ring(self) -> None:
        """Its ring's sockets are shut, so that it does not wait for those who have left it."""
        self._ring_is_broken.set()

    async def keep_calling(self) -> None:
        """To the door, at its next commit. What it hears between two rings is forgotten there, so it is said again.

        Until it has come, or this is called again: `wait_for` may swallow the cancellation of its task.
        """
        self._calls += 1
        calls = self._calls
        while calls == self._calls:
            if self._notified is not None:
                with contextlib.suppress(
                    RendezvousError
                ):  # it ends, or does not look: others wait for it, with a limit
                    await notify(self._notified, time.time())
            await asyncio.sleep(_CALL_PERIOD)

    # --- what it asks ---

    async def get(self, scope: str, key: str) -> bytes | None:
        if (scope, key) == ("worker", "door"):
            place = await self._come()
            answer = {"leaves": place is None, "variables": {} if place is None else place.variables()}
            return json.dumps(answer).encode()
        if (scope, key) == ("worker", "cut"):
            await self._ring_is_broken.wait()
            self._ring_is_broken.clear()
            return json.dumps(sorted(self.ring.addresses) if self.ring is not None else []).encode()
        if scope == "rank_and_size":
            return await self._rank_and_size()
        return await self.ring.get(scope, key) if self.ring is not None else None

    async def put(self, scope: str, key: str, value: bytes) -> None:
        if (scope, key) == ("worker", "holds"):
            self._hooks.holds()
        elif scope == "worker_addresses":
            self._notified = read_addresses(value)
        elif self.ring is not None:
            await self.ring.put(scope, key, value)
        else:
            raise RingError(f"{scope}/{key}: this process has no place in a ring")

    async def delete(self, scope: str, key: str) -> None:
        if self.ring is not None:
            await self.ring.delete(scope, key)

    async def _come(self) -> Place | None:
        if self._door is not None:
            self._door.cancel()  # of a request that it has given up
        door: asyncio.Future[Place | None] = self._loop.create_future()
        self._door = door
        self._ring_is_broken.clear()
        self._calls += 1
        self._hooks.came()
        return await door

    async def _rank_and_size(self) -> bytes:
        """It has its place from the door already, unless it gets around that."""
        place = self._place or await self._come()
        self._place = None
        if place is None:
            self.send_signal(signal.SIGTERM)  # Horovod aborts its process if it is told that there is no place
            await self._loop.create_future()
        assert place is not None
        return place.in_horovods_words()

    # --- its life ---

    def _spawn(self, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        settings, record = self._settings, self._record
        program = settings.program
        flag = ("--module",) if program.kind == "module" else ()
        where = settings.endpoint.variables(self._token)
        environ = process_environment(settings.environ, settings.address, settings.hostname, record.local_rank, where)
        return subprocess.Popen(
            (settings.python or sys.executable, "-u", "-m", _MODULE, *flag, program.name, *program.arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**environ, worker_environment.MARK: record.worker},
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )

    def _ended(self, code: int) -> None:
        self._settings.endpoint.forget(self._token)
        self.open_door(None)
        self._hooks.ended(code)
