"""A worker that is one process, which takes part in the job itself, over its control line."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..rendezvous import worker_environment
from ..rendezvous.death_watch import exit_status
from ..rendezvous.messages import ToWorker
from ..rendezvous.parent_death import die_with_parent
from ..rendezvous.progress import Progress, ProgressPage
from .child_process import ChildProcess
from .control import ControlLine
from .guarding import Guard
from .output.log_folders import worker_folder
from .output.prefixes import Label
from .output.room import Output
from .worker import Hooks, Worker
from .worker_record import WorkerRecord

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
    output: Output
    guard: Guard
    log_dir: Path | None = None


class WorkerProcess(Worker):
    """The process gets its control line, its page of shared memory and who it is by its environment."""

    def __init__(self, surroundings: Surroundings, record: WorkerRecord, hooks: Hooks) -> None:
        """Raises OSError if the process cannot be started."""
        super().__init__(record)
        self._surroundings = surroundings
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        page = ProgressPage.create()
        self._page = ProgressPage(os.dup(page))
        self._watch = self._page.death_watch
        self._has_death_watch = self._watch.create()
        try:
            self._process = ChildProcess(
                lambda stdout, stderr: self._spawn(theirs, page, stdout, stderr),
                surroundings.output,
                surroundings.guard,
                self._label,
                self._logs(),
                self._ended,
                mark=f"{worker_environment.MARK}={record.worker}",
            )
        except BaseException:
            ours.close()
            self._page.close()
            raise
        finally:
            theirs.close()
            os.close(page)
        self._control = ControlLine(
            ours, lambda message: hooks.said(self, message), lambda what: hooks.nonsense(self, what)
        )

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,)

    def send(self, message: ToWorker) -> None:
        self.record.told(message)
        self._control.send(message)

    def watch_for_death(self) -> None:
        """To be called once the worker holds its death watch. `Hooks.dying` may be called from then on."""
        if self._has_death_watch:
            threading.Thread(target=self._wait_for_death, name=f"death-watch-{self._process.pid}", daemon=True).start()

    def _wait_for_death(self) -> None:
        if self._watch.wait():
            code = exit_status(self._process.pid)
            with contextlib.suppress(RuntimeError):  # the loop is over, and with it this agent
                self._loop.call_soon_threadsafe(self._dying, code)

    def _dying(self, code: int | None) -> None:
        if not self._process.has_ended:
            self._hooks.dying(self, code)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def progress(self) -> Progress:
        return self._page.read()

    def extend_lease(self, until: float) -> None:
        self._page.write_lease(until)

    def tail(self) -> str:
        return self._process.tail()

    @property
    def is_drained(self) -> bool:
        return self._process.is_drained

    async def drained(self) -> None:
        await self._process.drained()

    def _ended(self, code: int) -> None:
        self._control.read_what_is_left()
        self._control.close()
        self._hooks.ended(self, code)
        self._page.close()

    def _spawn(self, control: socket.socket, page: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._surroundings.command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=self._environment(control.fileno(), page),
            pass_fds=(control.fileno(), page),
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )

    def _label(self) -> Label:
        return self.record.label(self._surroundings.host)

    def _logs(self) -> Path | None:
        around = self._surroundings
        return worker_folder(around.log_dir, around.job, around.host, self.record.local_rank, self.record.worker)

    def _environment(self, control: int, page: int) -> dict[str, str]:
        around = self._surroundings
        environ = without_other_launchers(around.environ)
        environ[worker_environment.WORKER] = self.record.worker
        environ[worker_environment.MARK] = self.record.worker
        environ[worker_environment.CONTROL_FD] = str(control)
        environ[worker_environment.PROGRESS_FD] = str(page)
        environ[worker_environment.LOCAL_RANK] = str(self.record.local_rank)
        environ[worker_environment.LOCAL_WORLD_SIZE] = str(around.slots)
        environ[worker_environment.JOB] = around.job
        environ[worker_environment.HOST] = around.host
        environ[worker_environment.ADDRESS] = around.address
        return environ


def without_other_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables by which another launcher told this one its place."""
    return {
        name: value for name, value in environ.items() if name not in _FOREIGN and not name.startswith("TORCHELASTIC_")
    }
