"""Signals that a batch system sends to every process of a job at once: the agent answers them, and a worker goes on.

Without this, `scancel` or `sbatch --signal` would kill the workers in the middle of the step after which their agent has
them leave.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ..rendezvous import worker_environment

_masks = threading.local()  # of the threads that fork


def raise_shield() -> None:
    """For this process. Handlers that the script has set stay, and programs that it starts are as they were."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python gives signals to the main thread only
    caught = _caught()
    for number in _named():
        if not caught >> (number - 1) & 1:
            signal.signal(number, _leave_it_to_the_agent)
    if signal.getsignal(signal.SIGTERM) is _leave_it_to_the_agent:
        # `multiprocessing` ends its processes with SIGTERM, and waits for them. None may be lost before it ends them again.
        os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_go, after_in_child=_let_sigterm_through)


def raise_shield_of_child(is_wanted: Callable[[], bool]) -> None:
    """For a process of a DataLoader, which torch has made die of SIGTERM. It still ends by that if nobody wants it."""

    def end_unless_wanted(number: int, frame: FrameType | None) -> None:
        if not is_wanted():
            os._exit(0)

    if threading.current_thread() is threading.main_thread():
        for number in _named():
            signal.signal(number, end_unless_wanted)


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


def _hold_sigterm() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _let_sigterm_through() -> None:
    if signal.getsignal(signal.SIGTERM) is _leave_it_to_the_agent:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()
