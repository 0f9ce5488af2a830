"""Launching scripts that import horovod, as `elastic-launch --horovod` does, and what their journals prove."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..system.journals import Entry
from ..system.launching import Command, Lab

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE = 180.0  # seconds: where ten processes share a CPU, importing TensorFlow alone takes a minute


class HorovodLab(Lab):
    def wait(self, condition: Callable[[], Any], limit: float, what: str) -> Any:
        return super().wait(condition, max(limit, PATIENCE), what)

    def run(self, script: str, *flags: str, environment: dict[str, str] | None = None, **options: Any) -> Command:
        """Start an agent; keyword options become the script's flags."""
        return self.launch("--horovod", *flags, script=str(SCRIPTS / script), environment=environment, **options)

    def newest_size(self) -> int:
        steps = self.journal("step")
        return int(steps[-1]["size"]) if steps else 0

    def total(self) -> int:
        """The most steps that a worker has counted."""
        return max((entry["total"] for entry in self.journal("step")), default=0)

    def wait_for_total(self, total: int, limit: float = 60) -> None:
        self.wait(lambda: self.total() >= total, limit, f"step {total}")

    def wait_for_size(self, size: int, limit: float = 60) -> None:
        """Until the newest step was made by that many."""
        self.wait(lambda: self.newest_size() == size, limit, f"a step of {size} workers")

    def pid_at(self, rank: int) -> int:
        """The process that has that rank in the newest step of all."""
        size = self.newest_size()
        return int(next(entry["pid"] for entry in reversed(self.journal("step", size=size)) if entry["rank"] == rank))

    def kill_at(self, *ranks: int) -> list[int]:
        pids = [self.pid_at(rank) for rank in ranks]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    def ends(self, members: int) -> list[Entry]:
        """Of all members, who must have ended alike."""
        ends = self.journal("end")
        assert len(ends) == members, ends
        assert len({(end["total"], end["weights"]) for end in ends}) == 1, ends
        return ends
