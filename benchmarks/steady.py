"""Steady steps against plain DDP, in paired turns of the same processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from .jobs import agent, ending, wait_for
from .settings import Settings, scratch_folder


def measure(settings: Settings) -> list[dict[str, float]]:
    """One entry for each pair of turns: milliseconds a step, `elastic` and `plain`, and `_cpu` of each."""
    with scratch_folder() as name:
        folder = Path(name)
        out = folder / "turns.json"
        size = str(settings.workers)
        sizes = ["--pairs", str(settings.pairs), "--block", str(settings.block)]
        job = agent(
            ["--min", size, "--max", size, "--nproc-per-node", size],
            "benchmarks.steady_turns",
            ["--out", str(out), *sizes, *settings.workload_flags()],
            folder / "agent.log",
        )
        with ending(job):
            wait_for(out.exists, 3600, "the turns", job)
            time.sleep(0.1)
            turns: list[dict[str, float]] = json.loads(out.read_text())
            return turns
