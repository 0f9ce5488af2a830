"""One slot's member of the job, in the place of a script that knows nothing of it.

The keeper outlives the script's processes: it holds the lineage, and it answers the server. Between two generations it ends
the script, meets the other keepers, and says `Formed`; on the release it starts the script with its place in the
environment. A script that fails breaks its generation, and nothing else.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import RingError
from ...rendezvous.host_port import host_port
from ...rendezvous.meeting.client import GatherTimeout, MeetingClient
from ...rendezvous.messages import (
    Announce,
    Broken,
    Crashed,
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
from ...rendezvous.progress import Progress
from ...rendezvous.waiting import is_set_within
from ..child_process import ChildProcess
from ..finishing import all_have_finished
from ..output.log_folders import worker_folder
from ..reporter import Reporter
from ..threads import in_a_thread
from ..worker import Hooks, Worker
from ..worker_record import WorkerRecord
from .environment import ScriptSettings, script_environment
from .error_file import read_error
from .scripts import Scripts, Store, free_port
from .world import Entry, Seat, seat

if TYPE_CHECKING:
    from ..horovod.script import Leading, Led

_MEETING_LIMIT = 290.0  # seconds; the server gives up a generation that has not formed a little later
_CANNOT_RUN = 126
_HAS_A_CHECKPOINT = 1  # as far as the server knows: the scripts see to their own


@dataclass(frozen=True)
class KeeperSettings:
    """What the keepers of one agent have in common.

    `scratch` is a folder for the scripts' error files, `node` the agent's node rank, -1 if it was given none. `leading` is there
    for scripts that train with Horovod.
    """

    agent: str
    job: str
    host: str
    address: str
    shutdown_timeout: float
    scripts: Scripts
    words: ScriptSettings
    scratch: Path
    log_dir: Path | None
    reporter: Reporter
    node: int = -1
    leading: Leading | None = None


class Keeper(Worker):
    def __init__(self, settings: KeeperSettings, record: WorkerRecord, hooks: Hooks) -> None:
        super().__init__(record)
        self._settings = settings
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._logs = self._make_logs()
        self._announce: Announce | None = None
        self._place = -1  # its rank as the server has it
        self._seat: Seat | None = None
        self._client: MeetingClient | None = None
        self._store: Store | None = None
        self._script: ChildProcess | None = None
        self._led: Led | None = None
        self._script_ended = asyncio.Event()
        self._giving_up = False  # the script's end is wanted
        self._has_finished = False  # its script, in the newest generation
        self._is_doomed = False  # and the keeper's with it
        self._started = 0  # the newest generation whose script was started
        self._past: list[ChildProcess] = []
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._do(self._get_ready(0))

    @property
    def pids(self) -> tuple[int, ...]:
        store = self._store.process if self._store is not None else None
        last = self._script or (self._past[-1] if self._past else None)
        return tuple(process.pid for process in (last, store) if process is not None)

    @property
    def is_idle(self) -> bool:
        return self._script is None and not self._has_finished

    def send(self, message: ToWorker) -> None:
        self.record.told(message)
        if self._ended:
            return
        if isinstance(message, Announce):
            if self._announce is None or message.generation > self._announce.generation:
                self._announce, self._seat = message, None
                self._do(self._take_place(message))
        elif isinstance(message, Release):
            self._released(message)
        elif isinstance(message, Evicted):
            self._seat = None
            self._do(self._get_ready(self.record.lineage))
        elif isinstance(message, Released):
            self._do(self._leave())
        elif isinstance(message, Done):
            self._end(0)

    def watch_for_death(self) -> None:
        """It lives as long as its agent."""

    def send_signal(self, number: int) -> None:
        """The keeper ends when its script does."""
        if self._script is None:
            self._end(128 + number)
            return
        self._is_doomed = True
        self._cancel()
        self._script.send_signal(number)

    def progress(self) -> Progress:
        return Progress()

    def extend_lease(self, until: float) -> None:
        """The store of the scripts is what they need to step; a lease is for rings that need nobody else."""

    def tail(self) -> str:
        return self._past[-1].tail() if self._past else ""

    @property
    def is_drained(self) -> bool:
        return all(script.is_drained for script in self._past)

    async def drained(self) -> None:
        await asyncio.gather(*(script.drained() for script in self._past))

    # --- between generations ---------------------------------------------------------------------------------------

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        """In the place of what was being done."""
        self._cancel()
        self._task = self._loop.create_task(what)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _get_ready(self, lineage: int) -> None:
        await self._stop_script()
        if not self.record.registered:
            self._hooks.said(self, Registered(self.record.worker))
        await self._settings.scripts.fork_server.warm()
        self._hooks.said(self, Ready(self.record.worker, lineage, _HAS_A_CHECKPOINT))

    async def _take_place(self, announce: Announce) -> None:
        await self._stop_script()
        place = self._place = next(p.rank for p in announce.places if p.worker == self.record.worker)
        if place < 0:
            return  # it leaves, and is told when it may go
        await self._settings.scripts.fork_server.warm()
        try:
            entries = await self._meet(announce, place)
        except GatherTimeout as error:
            self._hooks.said(self, Broken(self.record.worker, announce.generation, str(error), error.missing))
            return
        except (RingError, OSError) as error:
            self._hooks.said(self, Broken(self.record.worker, announce.generation, str(error)))
            return
        self._seat = seat(entries, place)
        self._hooks.said(self, Formed(self.record.worker, announce.generation))
        self.record.rank = self._seat.rank

    async def _meet(self, announce: Announce, place: int) -> list[Entry]:
        """What all keepers of the generation say, in the order of their places. The first one opens the store.

        So does node 0, if there is one: it cannot know yet who else is there.
        """
        node = self._settings.node
        if place == 0 or (node == 0 and self.record.local_rank == 0):
            self._store = await self._settings.scripts.open_store(self._settings.address)
        store = self._store.address if self._store is not None else ""
        served = self._store is not None and self._store.is_served
        host = self._settings.address
        address = host_port(host, free_port(host))
        mine = Entry(
            self._settings.agent, self.record.local_rank, self._settings.words.role, store, served, node, address
        )
        client = self._client = MeetingClient(
            announce.meeting, self._settings.job, announce.generation, announce.secret
        )
        said = await in_a_thread(
            lambda: client.gather("place", place, announce.world_size, msgspec.json.encode(mine), _MEETING_LIMIT),
            "meeting",
            stop=lambda: client.abort("the generation was superseded"),
        )
        return [msgspec.json.decode(entry, type=Entry) for entry in said]

    async def _stop_script(self) -> None:
        """First by SIGTERM, so that it can save what it has; then its whole process group by SIGKILL."""
        if self._client is not None:
            self._client.abort("the generation is over")
            self._client = None
        script = self._script
        if script is not None:
            self._giving_up = True
            script.send_signal(signal.SIGTERM)
            if not await is_set_within(self._script_ended, self._settings.shutdown_timeout):
                limit = f"{self._settings.shutdown_timeout:g} s (--shutdown-timeout)"
                self._settings.reporter.say(
                    f"the script of rank {self.record.rank} has not ended within {limit}: killed"
                )
                script.send_signal(signal.SIGKILL)
                await self._script_ended.wait()
        self._close_store()

    async def _leave(self) -> None:
        await self._stop_script()
        self._end(0)

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            if self._store.process is not None:
                self._past.append(self._store.process)
            self._store = None

    # --- the script ------------------------------------------------------------------------------------------------

    def _released(self, message: Release) -> None:
        announce = self._announce
        if announce is None or announce.generation != message.generation or self._seat is None:
            return
        if message.parked or self._started >= message.generation:
            return
        self._started = message.generation
        self._start_script(self._seat, message.generation)

    def _start_script(self, place: Seat, generation: int) -> None:
        settings = self._settings
        self._past = [process for process in self._past if not process.is_drained]
        self._script_ended.clear()
        self._giving_up = False
        self._has_finished = False
        error_file = settings.scratch / f"{self.record.worker}-{generation}.json"
        environ = script_environment(settings.scripts.environ, settings.words, place, generation, str(error_file))
        if settings.leading is not None and self._client is not None:
            self._led = settings.leading.begin(environ, place, self._client)
            environ = self._led.environ
        try:
            self._script = settings.scripts.start(
                environ,
                lambda: self.record.label(settings.host),
                self._logs,
                lambda code: self._script_has_ended(code, generation, error_file),
            )
        except OSError as error:
            text = f"it cannot be started: {error}"
            self._hooks.said(self, Crashed(self.record.worker, generation, _CANNOT_RUN, text))

    def _script_has_ended(self, code: int, generation: int, error_file: Path) -> None:
        assert self._script is not None
        script, self._script = self._script, None
        if self._led is not None:
            self._led.end()
        self._past.append(script)
        self._script_ended.set()
        message, stack = read_error(error_file)
        error_file.unlink(missing_ok=True)
        if self._is_doomed:
            self._end(code)
        elif self._ended or self._giving_up:
            return
        elif code == 0:
            self._has_finished = True
            self._do(self._finish(generation))
        else:
            self._hooks.said(self, Crashed(self.record.worker, generation, code, message, stack or script.tail()))

    async def _finish(self, generation: int) -> None:
        """The job is done when all scripts of one generation have ended well; until then this one may be needed again."""
        client, own = self._client, self._seat
        assert client is not None and own is not None
        if await all_have_finished(client, self._place, own.world_size, "the generation was superseded"):
            self._hooks.said(self, Finished(self.record.worker))

    def _end(self, code: int) -> None:
        if self._ended:
            return
        self._ended = True
        self._cancel()
        if self._client is not None:
            self._client.abort("the worker ends")
        if self._script is not None:
            self._script.send_signal(signal.SIGKILL)
            self._past.append(self._script)
        self._close_store()
        self._hooks.ended(self, code)

    def _make_logs(self) -> Path | None:
        settings = self._settings
        return worker_folder(settings.log_dir, settings.job, settings.host, self.record.local_rank, self.record.worker)
