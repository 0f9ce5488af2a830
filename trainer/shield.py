"""Signals that a batch system sends to every process of a job at once: the agent answers them, and a worker goes on.

Without this, `scancel` or `sbatch --signal` would kill the workers in the middle of the step after which their agent has
them leave.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from ..rendezvous import worker_environment


def raise_shield() -> None:
    """For this process, and those that it forks; programs that it starts are as they were. Handlers of the script stay."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python gives signals to the main thread only
    caught = _caught()
    for number in _named():
        if not caught >> (number - 1) & 1:
            signal.signal(number, _leave_it_to_the_agent)


def raise_shield_over_handlers() -> None:
    """For a process of a DataLoader, whose own handler would end it."""
    if threading.current_thread() is threading.main_thread():
        for number in _named():
            signal.signal(number, _leave_it_to_the_agent)


def _named() -> list[signal.Signals]:
    names = os.environ.get(worker_environment.AGENT_ANSWERS, "").split(",")
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _caught() -> int:
    """The mask of signals that have a handler, Python's or not."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)


def _leave_it_to_the_agent(number: int, frame: FrameType | None) -> None:
    pass
