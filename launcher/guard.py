"""A process that outlives its agent by a moment, to end the agent's workers however the agent dies.

A parent-death signal reaches only the worker itself: its DataLoader processes would stay, and keep a GPU's memory. The guard
holds one end of a pipe whose other end only the agent has. The agent writes down each worker's process group; the
end of file says that the agent is gone, and the guard kills what is left of the groups.

This file runs as a script of its own, with the standard library only: the guard starts in milliseconds and shares neither
memory nor descriptors with the agent.
"""

from __future__ import annotations

import os
import signal
import sys

NAME = "elastic-guard"


def main() -> None:
    """Reads `+GROUP` and `-GROUP` lines from standard input until its end, then kills the groups that are left."""
    ignore_polite_signals()
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(NAME)
    except OSError:
        pass  # a name for people only
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            break
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        kill_group(group)


def kill_group(group: int, number: int = signal.SIGKILL) -> bool:
    """Signals every process of the group; False if there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # some of it runs as another user; what is ours has had the signal
    return True


def ignore_polite_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
