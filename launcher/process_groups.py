"""What the kernel tells about the processes of a group, without waiting for any."""

from __future__ import annotations

import os
from pathlib import Path

_DEAD = frozenset("ZX")


def has_live_members(group: int) -> bool:
    """Whether a process of the group lives; zombies do not."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            state, of_group = _state_and_group(int(entry.name))
            if of_group == group and state not in _DEAD:
                return True
    return False


def killed_by(pid: int) -> int:
    """The signal that has ended this child, which is dead and not yet reaped; 0 if none has, or it is no child."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_status if found is not None and found.si_code in (os.CLD_KILLED, os.CLD_DUMPED) else 0


def where_it_is_stuck(pid: int) -> str:
    """For people: the state of a process that SIGKILL has not ended."""
    state, _ = _state_and_group(pid)
    try:
        place = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    except OSError:
        place = ""
    return f"state {state or '?'}{f' in {place}' if place else ''}"


def _state_and_group(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[2])
