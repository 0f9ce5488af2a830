"""What ends an agent from outside: signals, and the death of a shell that stood between it and whoever sends them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh"})
SHELL_IS_FIRST = (
    "warning: the first process of this container is a shell, which keeps SIGTERM to itself: this agent would be killed"
    " without a chance to leave in order. Write `exec elastic-launch ...` in the container's command"
)


def hold_back(draining: Iterable[int]) -> None:
    """Signals that come before `Signals` takes them wait for it: the first process of a container would not get them at all."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *draining})


class Signals:
    """`drain` is told why, after one of `draining`, `interrupt` that somebody has pressed Ctrl-C. From `__init__` to `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        draining: Collection[int],
        drain: Callable[[str], None],
        interrupt: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._drain = drain
        self._shell = _shell_that_waits()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        for number in draining:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(number, drain, signal.Signals(number).name)
        self._pidfd = -1
        if self._shell:
            self._watch_the_shell()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *draining})

    def close(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _watch_the_shell(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self._shell)
        except OSError:
            return
        if os.getppid() != self._shell:  # its number may be another process's already
            os.close(self._pidfd)
            self._pidfd = -1
            return
        self._loop.add_reader(self._pidfd, self._shell_ended)

    def _shell_ended(self) -> None:
        self.close()
        self._drain(f"the shell that waited for this agent (pid {self._shell}) was ended")


def is_behind_a_first_shell() -> bool:
    """Whether the container's first process is a shell that has started this one: the kernel lets no signal through to it."""
    return os.getppid() == 1 and _name(1) in SHELLS


def _shell_that_waits() -> int:
    """The process id of the shell that waits for this process to end, 0 if there is none.

    Such a shell cannot end before this process does, unless it is killed: by a SIGTERM for the whole command, which reached
    nobody else. Not so one that has started this process in its background: it then ignores SIGINT. An interactive shell
    gives each of its commands a process group of its own.
    """
    parent = os.getppid()
    if parent <= 1 or signal.SIG_IGN in (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)):
        return 0
    try:
        together = os.getpgid(parent) == os.getpgrp()
    except OSError:
        return 0
    return parent if together and _name(parent) in SHELLS else 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
