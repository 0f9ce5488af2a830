"""One worker process: how it is started, and how it and all that it has started come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..rendezvous import worker_environment
from ..rendezvous.death_watch import exit_status
from ..rendezvous.messages import FromWorker, ToWorker
from ..rendezvous.progress import Progress, ProgressPage
from .control import ControlLine
from .guard import kill_group
from .guarding import Guard
from .output import OutputThread
from .worker_output import WorkerOutput
from .worker_record import WorkerRecord

_PR_SET_PDEATHSIG = 1
_DRAIN_LIMIT = 1.0  # seconds to read the output of a dead worker whose pipe another process holds
_prctl = ctypes.CDLL(None, use_errno=True).prctl

# Variables that describe another launcher's job. Inherited, they would make torch look for that launcher's store.
_FOREIGN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
)  # fmt: skip


@dataclass(frozen=True)
class Surroundings:
    """What the workers of one agent have in common."""

    command: Sequence[str]
    environ: Mapping[str, str]
    job: str
    host: str
    address: str
    slots: int
    output: OutputThread
    guard: Guard
    log_dir: Path | None = None


class WorkerProcess:
    """A running worker, from `__init__` until it has called `on_end` with the exit code (128 + n for signal n), once.

    It leads a session and a process group of its own. If the agent dies it gets SIGKILL, and the guard kills its group.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        record: WorkerRecord,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_nonsense: Callable[[WorkerProcess, str], None],
        on_dying: Callable[[WorkerProcess, int | None], None],
        on_end: Callable[[WorkerProcess, int], None],
    ) -> None:
        """Raises OSError if the process cannot be started."""
        self.record = record
        self.stopped = False  # the agent ended it on purpose, and for no fault of its own
        self.fault = ""  # why the agent ended it, if it was the worker's fault
        self._surroundings = surroundings
        self._on_dying = on_dying
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        logs = self._logs()
        ours, theirs = socket.socketpair()
        page = ProgressPage.create()
        self._page = ProgressPage(os.dup(page))
        self._watch = self._page.death_watch
        self._has_death_watch = self._watch.create()
        (stdout, stdout_end), (stderr, stderr_end) = os.pipe(), os.pipe()
        try:
            self._process = self._spawn(theirs, page, stdout_end, stderr_end)
        except BaseException:
            for descriptor in (stdout, stderr):
                os.close(descriptor)
            ours.close()
            self._page.close()
            raise
        finally:
            theirs.close()
            os.close(page)
            os.close(stdout_end)
            os.close(stderr_end)
        self.pid = self._process.pid
        surroundings.guard.add(self.pid)
        self._control = ControlLine(
            ours, lambda message: on_message(self, message), lambda what: on_nonsense(self, what)
        )
        self._stdout = WorkerOutput(stdout, 1, surroundings.output, self._label, logs and logs / "stdout.log")
        self._stderr = WorkerOutput(stderr, 2, surroundings.output, self._label, logs and logs / "stderr.log")
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._died)

    def send(self, message: ToWorker) -> None:
        self.record.told(message)
        self._control.send(message)

    def watch_for_death(self) -> None:
        """To be called once the worker holds its death watch. `on_dying` may be called then, before `on_end`."""
        if self._has_death_watch:
            threading.Thread(target=self._wait_for_death, name=f"death-watch-{self.pid}", daemon=True).start()

    def _wait_for_death(self) -> None:
        if self._watch.wait():
            code = exit_status(self.pid)
            with contextlib.suppress(RuntimeError):  # the loop is over, and with it this agent
                self._loop.call_soon_threadsafe(self._dying, code)

    def _dying(self, code: int | None) -> None:
        if self._drain is None:
            self._on_dying(self, code)

    def send_signal(self, number: int) -> None:
        """To the worker and all that it has started."""
        if self._drain is None:
            kill_group(self.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it for no fault of its own."""
        self.stopped = True
        self.send_signal(number)

    def progress(self) -> Progress:
        return self._page.read()

    def step(self) -> int:
        """The number of the step that it is, or was, in."""
        return self.progress().step

    def extend_lease(self, until: float) -> None:
        self._page.write_lease(until)

    def tail(self) -> str:
        """The last lines of what it wrote to its standard error."""
        return self._stderr.tail()

    @property
    def is_drained(self) -> bool:
        return self._drain is not None and self._drain.done()

    async def drained(self) -> None:
        """To be awaited after its end: what the processes that it had started still wrote is passed on, or its time is over."""
        if self._drain is not None:
            await self._drain

    def _spawn(self, control: socket.socket, page: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._surroundings.command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=self._environment(control.fileno(), page),
            pass_fds=(control.fileno(), page),
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )

    def _label(self) -> str:
        return self.record.label(self._surroundings.host)

    def _logs(self) -> Path | None:
        """The folder of its output's files, made."""
        around = self._surroundings
        if around.log_dir is None:
            return None
        folder = around.log_dir / around.job / around.host / f"worker-{self.record.local_rank}-{self.record.worker[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _environment(self, control: int, page: int) -> dict[str, str]:
        around = self._surroundings
        environ = {
            name: value
            for name, value in around.environ.items()
            if name not in _FOREIGN and not name.startswith("TORCHELASTIC_")
        }
        environ[worker_environment.WORKER] = self.record.worker
        environ[worker_environment.CONTROL_FD] = str(control)
        environ[worker_environment.PROGRESS_FD] = str(page)
        environ[worker_environment.LOCAL_RANK] = str(self.record.local_rank)
        environ[worker_environment.LOCAL_WORLD_SIZE] = str(around.slots)
        environ[worker_environment.JOB] = around.job
        environ[worker_environment.HOST] = around.host
        environ[worker_environment.ADDRESS] = around.address
        return environ

    def _died(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Before the worker is reaped its number cannot be given to another process group.
        kill_group(self.pid)
        self._surroundings.guard.remove(self.pid)
        code = self._process.wait()
        # Whoever waits for this worker is to hear of its end at once: what it wrote itself is in the pipes already.
        self._control.read_what_is_left()
        self._stdout.read_what_is_there()
        self._stderr.read_what_is_there()
        self._drain = self._loop.create_task(self._read_the_rest())
        self._on_end(self, code if code >= 0 else 128 - code)

    async def _read_the_rest(self) -> None:
        self._control.close()
        self._page.close()
        await asyncio.gather(self._stdout.drain(_DRAIN_LIMIT), self._stderr.drain(_DRAIN_LIMIT))


def die_with(agent: int) -> Callable[[], None]:
    """Runs in the worker before its program: the kernel kills it when the agent's main thread ends."""

    def arrange() -> None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != agent:  # it was gone before
            os._exit(1)

    return arrange
