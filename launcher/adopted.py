"""As a container's first process, an agent inherits the orphans of its workers, and nobody else can reap them."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

_THREADS = Path("/proc/self/task")


def reap_adopted(known: Set[int]) -> None:
    """Reaps every dead child of this process that is not one of `known`, which somebody else waits for."""
    for pid in _children():
        if pid not in known:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def _children() -> list[int]:
    found: list[int] = []
    for thread in _THREADS.iterdir():
        try:
            found += map(int, (thread / "children").read_text().split())
        except OSError:
            pass  # the thread has ended, or this kernel has no such list
    return found
