"""Agents as real processes, and waiting for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WITHIN = 40.0  # seconds


def undisturbed_signals() -> None:
    """A shell starts what runs in its background with these ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class RunningAgent:
    """An agent process with its output, read as it comes."""

    def __init__(
        self, options: dict[str, Any], environ: dict[str, str] | None = None, inside: Sequence[str] = ()
    ) -> None:
        """`inside` is a command that runs another one, such as `nohup`; `process` is then that command's."""
        self.process = subprocess.Popen(
            [*inside, sys.executable, str(HERE / "run_agent.py"), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
            preexec_fn=undisturbed_signals,
        )
        self.stdout = b""
        self.stderr = b""
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def agent_itself(self) -> psutil.Process:
        """The agent's own process, inside of whatever command it runs in."""

        def find() -> psutil.Process | None:
            around = psutil.Process(self.pid)
            for process in [around, *around.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    if process.cmdline()[1:2] == [str(HERE / "run_agent.py")]:
                        return process
            return None

        wait_until(lambda: find() is not None, "the agent runs")
        found = find()
        assert found is not None
        return found

    def wait(self, within: float = WITHIN) -> int:
        code = self.process.wait(within)
        for reader in self._readers:
            reader.join(within)
        return code

    def wait_for_text(self, text: str, within: float = WITHIN) -> None:
        """Until it has written `text`, to either stream."""
        deadline = time.monotonic() + within
        with self._changed:
            while text.encode() not in self.stdout + self.stderr:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{text!r} awaited for {within} s, got {self.text()}")

    def text(self) -> str:
        return f"exit code {self.process.poll()}\n{self.stdout.decode()}\n---\n{self.stderr.decode()}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        return list(psutil.Process(self.pid).children(recursive=True))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        while data := os.read(stream.fileno(), 65536):
            with self._changed:
                setattr(self, name, getattr(self, name) + data)
                self._changed.notify_all()
        stream.close()


def wait_until(is_so: Callable[[], bool], what: str, within: float = WITHIN) -> None:
    deadline = time.monotonic() + within
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within} s")
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_pid(file: Path) -> int:
    found: list[str] = []

    def is_written() -> bool:
        found[:] = file.read_text().split() if file.exists() else []
        return bool(found)

    wait_until(is_written, f"{file.name} is written")
    return int(found[0])
