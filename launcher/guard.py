"""A process that outlives its agent by a moment, to end the agent's workers however the agent dies.

A parent-death signal reaches only the worker itself: its DataLoader processes would stay, and keep a GPU's memory. The guard
holds one end of a pipe whose other end only the agent has. The agent writes down each worker's process group, and the mark
that the worker's descendants carry in their environment; the end of file says that the agent is gone, and the guard kills
what is left of the groups, and what has left them for a group of its own.

This file runs as a script of its own, with the standard library only: the guard starts in milliseconds and shares neither
memory nor descriptors with the agent.
"""

from __future__ import annotations

import os
import signal
import sys

NAME = "elastic-guard"
_ROUNDS = 20


def main() -> None:
    """Reads `+GROUP MARK` and `-GROUP` lines from standard input until its end, then kills what is left."""
    ignore_polite_signals()
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(NAME)
    except OSError:
        pass  # a name for people only
    groups: dict[int, bytes] = {}
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            break
        group, _, mark = line[1:-1].partition(b" ")
        if line.startswith(b"+"):
            groups[int(group)] = mark
        else:
            groups.pop(int(group), None)
    for number in groups:
        kill_group(number)
    for mark in filter(None, groups.values()):
        signal_marked(mark)


def kill_group(group: int, number: int = signal.SIGKILL) -> bool:
    """Signals every process of the group; False if there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # some of it runs as another user; what is ours has had the signal
    return True


def signal_marked(mark: bytes, number: int = signal.SIGKILL) -> int:
    """Signals every process that has `mark`, a NAME=value, in the environment that it was started with. How many there are.

    Until no further one turns up: they may start others meanwhile.
    """
    signalled: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in _own_processes() if pid not in signalled and _has_mark(pid, mark)]
        if not found:
            break
        for pid in found:
            signalled.add(pid)
            try:
                os.kill(pid, number)
            except OSError:
                pass
    return len(signalled)


def _own_processes() -> list[int]:
    """All of this user but this one."""
    found = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if entry.stat().st_uid == os.geteuid():
                        found.append(int(entry.name))
                except OSError:
                    pass
    return found


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def ignore_polite_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
