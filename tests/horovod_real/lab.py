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

    def train(self, *flags: str, script: str = "train.py", gloo_timeout: int = 30, **options: Any) -> Command:
        """`gloo_timeout` in seconds; the other options are the script's."""
        environment = {**self._environment, "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout)}
        return self.launch(*flags, script=str(SCRIPTS / script), environment=environment, **options)

    def world_size(self) -> int:
        """Of the newest ring; 0 while not all of it are there and have made a step."""
        newest = self.journal("ring")[-1:]
        size = int(newest[0]["world_size"]) if newest else 0
        ring = self.journal("ring")[-size:] if size else []
        if {entry["rank"] for entry in ring} != set(range(size)):
            return 0
        stepping = {entry["pid"] for entry in self.journal("step") if entry["time"] > ring[-1]["time"]}
        return size if stepping == {entry["pid"] for entry in ring} else 0

    def newest_ring(self) -> list[int]:
        """Its processes, in the order of their ranks; to be asked where `world_size` is not 0."""
        ring = self.journal("ring")[-self.world_size() :]
        return [int(entry["pid"]) for entry in sorted(ring, key=lambda entry: int(entry["rank"]))]

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
