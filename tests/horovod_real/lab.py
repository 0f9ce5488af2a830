"""Agents whose workers train with the real Horovod, and what those have written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..system.launching import ROOT, Command, Lab

SCRIPTS = Path(__file__).parent / "scripts"


class HorovodLab(Lab):
    """The script tells nothing of generations: a ring is known by its processes."""

    def __init__(self, folder: Path, horovod: Path) -> None:
        super().__init__(folder)
        self._environment = {"PYTHONPATH": f"{ROOT}:{horovod}"}

    def train(self, *flags: str, script: str = "train.py", **options: Any) -> Command:
        return self.launch(*flags, script=str(SCRIPTS / script), environment=self._environment, **options)

    def world_size(self) -> int:
        steps = self.journal("step")
        return int(steps[-1]["world_size"]) if steps else 0

    def newest_ring(self) -> list[int]:
        """Its processes, in the order of their ranks."""
        pids: dict[int, int] = {}
        for entry in self.journal("step"):
            if entry["world_size"] == self.world_size():
                pids[int(entry["rank"])] = int(entry["pid"])
        return [pids[rank] for rank in sorted(pids)]

    def pid_of_rank(self, rank: int) -> int:
        return self.newest_ring()[rank]

    def check_the_end(self, world_size: int) -> None:
        """All that were there at the end have the same weights, learnt something, and no committed step is missing."""
        ends = self.journal("end")
        assert len(ends) == world_size
        assert len({entry["weights"] for entry in ends}) == 1
        assert ends[0]["accuracy"] > 0.8
        steps = {entry["step"] for entry in self.journal("step")}
        assert steps == set(range(1, ends[0]["step"] + 1))
