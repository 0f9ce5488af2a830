"""Start agents and servers with a training script, see what the workers journal, and disturb them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from .journals import Entry, JournalFolder

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def as_from_a_terminal() -> None:
    """Die with pytest, however that ends; and heed what a shell makes its background commands ignore."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Command:
    """A running command with its output, read as it comes."""

    def __init__(
        self,
        module: str,
        arguments: Iterable[str],
        environment: dict[str, str] | None = None,
        inside: Iterable[str] = (),
    ) -> None:
        """`inside` is a command that runs another one, such as `ip netns exec NAME`."""
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-u", "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="command-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.decode(errors="replace"))

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """Where the server in this process is reached."""
        match = wait_for(lambda: re.search(r"http://[\w.\[\]:]+:\d+", self.output), 30, "the server's URL")
        return str(match.group(0))

    def wait(self, limit: float = 90) -> int:
        """The exit code."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {limit} s:\n{self.output[-6000:]}") from None
        self._reader.join(20)
        return code

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []

    def workers(self) -> list[psutil.Process]:
        """The worker processes of this agent."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children()
            return [child for child in children if "elastic_launch.trainer.main" in " ".join(child.cmdline())]
        return []

    def end(self) -> None:
        if self.process.poll() is None:
            descendants = self.descendants()
            self.process.kill()
            for descendant in descendants:
                with contextlib.suppress(psutil.NoSuchProcess):
                    descendant.kill()
        self.process.wait(10)
        self._reader.join(20)


class Lab(JournalFolder):
    """One job's agents, servers and journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "journal")
        self.commands: list[Command] = []

    # --- starting ---

    def launch(
        self,
        *flags: str,
        script: str = "train.py",
        environment: dict[str, str] | None = None,
        inside: Iterable[str] = (),
        **options: Any,
    ) -> Command:
        """Start an agent; keyword options become the script's flags (True: a bare flag)."""
        arguments = [str(SCRIPTS / script), "--journal", str(self.folder)]
        for name, value in options.items():
            arguments.append("--" + name.replace("_", "-"))
            if value is not True:
                arguments.append(str(value))
        return self._start(Command("elastic_launch.launcher.main", [*flags, *arguments], environment, inside))

    def serve(self, *flags: str, host: str = "127.0.0.1", inside: Iterable[str] = ()) -> Command:
        """Start a server of its own."""
        arguments = ["--host", host, "--port", "0", *flags]
        return self._start(Command("elastic_launch.rendezvous.main", arguments, inside=inside))

    def _start(self, command: Command) -> Command:
        self.commands.append(command)
        return command

    # --- waiting ---

    def wait(self, condition: Callable[[], Any], limit: float, what: str) -> Any:
        try:
            return wait_for(condition, limit, what)
        except AssertionError as error:
            output = "\n---\n".join(command.output[-4000:] for command in self.commands)
            output += self._traces()
            raise AssertionError(f"{error}; last entries: {self.journal()[-4:]}; the agents said:\n{output}") from None

    def _traces(self) -> str:
        """Where each thread of each worker is."""
        workers = [worker for command in self.commands for worker in command.workers()]
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        files = [self.folder / f"{worker.pid}.traces" for worker in workers]
        return "".join(f"\n--- {file.stem}\n{file.read_text()}" for file in files if file.exists())

    def wait_for_step(self, step: int, limit: float = 90) -> None:
        self.wait(lambda: self.step() >= step, limit, f"step {step}")

    def wait_for_steps(self, count: int, limit: float = 90) -> None:
        """Until `count` more steps have been committed."""
        self.wait_for_step(self.step() + count, limit)

    def wait_for_world(self, world_size: int, limit: float = 90) -> None:
        """Until the newest ring is one of `world_size`, and has made a step."""
        self.wait(lambda: self.world_size() == world_size, limit, f"a ring of {world_size}")

    def wait_for_entry(self, event: str, limit: float = 90, **fields: Any) -> Entry:
        """The first entry of that kind with those fields."""

        def found() -> Entry | None:
            return next(iter(self.journal(event, **fields)), None)

        entry: Entry = self.wait(found, limit, f"{event} with {fields}")
        return entry

    def wait_for_text(self, command: Command, text: str, limit: float = 90) -> None:
        self.wait(lambda: text in command.output, limit, repr(text))

    @contextlib.contextmanager
    def held(self, place: str, limit: float = 90, count: int = 1) -> Iterator[None]:
        """Inside it, `count` more processes than before wait at that place of the script."""
        note = self.folder / f"hold-{place}"
        before = len(self.journal("held", place=place))
        note.touch()
        try:
            self.wait(lambda: len(self.journal("held", place=place)) >= before + count, limit, f"{count} at {place!r}")
            yield
        finally:
            note.unlink()

    def begin_together(self, workers: int) -> None:
        """Right behind the launch: the first ring is one of all, though one of them may take seconds longer to start."""
        with self.held("joining", count=workers):
            pass

    # --- disturbing ---

    def pid_of_rank(self, rank: int) -> int:
        """The process that has this rank in the newest ring that was formed."""

        def found() -> int:
            newest = self.journal("change", generation=self.generation(), rank=rank)
            return int(newest[0]["pid"]) if newest else 0

        return int(self.wait(found, 30, f"rank {rank}"))

    def signal_rank(self, rank: int, number: int) -> int:
        pid = self.pid_of_rank(rank)
        os.kill(pid, number)
        return pid

    def kill_rank(self, *ranks: int) -> list[int]:
        """Kill -9, all at once; their process ids."""
        pids = [self.pid_of_rank(rank) for rank in ranks]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    def end(self) -> None:
        for command in self.commands:
            command.end()


def wait_for(condition: Callable[[], Any], limit: float, what: str) -> Any:
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {limit} s in vain for {what}"
        time.sleep(0.02)


def wait_until_gone(processes: Iterable[psutil.Process], limit: float = 20) -> None:
    """Until none of the processes lives any more; zombies count as dead."""
    left = list(processes)

    def all_gone() -> bool:
        left[:] = [process for process in left if is_alive(process)]
        return not left

    wait_for(all_gone, limit, f"the end of {left}")


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
