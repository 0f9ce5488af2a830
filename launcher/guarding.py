"""The agent's side of the guard: starts it, tells it which process groups are ours, and replaces it if it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from . import guard

_SCRIPT = Path(guard.__file__)


class Guard:
    """One live guard process at all times, from `__init__` to `close`."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From here on the guard's death is noticed at once."""
        self._loop = loop
        loop.add_reader(self._pidfd, self._replace)

    def add(self, group: int, mark: str = "") -> None:
        """`mark`, a NAME=value, is what all descendants of the group's leader carry in their environment."""
        self._groups[group] = mark
        self._tell(f"+{group} {mark}\n")

    def remove(self, group: int) -> None:
        """To be called while the group's leader is not yet reaped, so that its number cannot belong to anybody else."""
        self._groups.pop(group, None)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends the guard, which kills the groups that are still written down."""
        process, self._process = self._process, None
        if process is None:
            return
        self._unwatch()
        _close_pipe(process)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for group in self._groups:
            guard.kill_group(group)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            preexec_fn=guard.ignore_polite_signals,  # from its first instruction on: it may be signalled with its cgroup
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._pidfd = os.pidfd_open(self._process.pid)
        if self._loop is not None:
            self._loop.add_reader(self._pidfd, self._replace)
        for group, mark in self._groups.items():
            self._tell(f"+{group} {mark}\n")

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except OSError:  # dead, or stopped for so long that the pipe is full
            self._replace()

    def _replace(self) -> None:
        process = self._process
        if process is None:
            return
        self._unwatch()
        # A guard that is only stopped would read the end of the pipe later, and kill groups that live: it must be dead first.
        process.send_signal(signal.SIGKILL)
        process.wait()
        _close_pipe(process)
        self._start()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except OSError:
        pass
