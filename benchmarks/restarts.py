"""The same kill with an unmodified script, all of whose processes start again from a checkpoint: torchrun's way.

Measured under torchrun, and under elastic-launch, with the same script.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from .jobs import Program, ending
from .kills import kill
from .observing import calm_members, undisturbed_step_ms, wait_for_members_of
from .settings import Settings, scratch_folder
from .timeline import Event, Recorded, Recordings


def measure(settings: Settings, launcher: str) -> list[dict[str, Any]]:
    """One entry for each trial, with the names of an `Observation`. All workers are new ones after the kill."""
    generator = random.Random(settings.seed)
    trials = []
    with scratch_folder() as name:
        folder = Path(name)
        size = str(settings.workers)
        flags = {
            "elastic_launch.launcher.main": ["--max", size, "--on-change", "restart"],
            "torch.distributed.run": ["--standalone", "--nproc-per-node", size],
        }[launcher]
        arguments = ["-m", "benchmarks.plain_script", "--timeline", name, *settings.workload_flags()]
        job = Program(
            [sys.executable, "-m", launcher, *flags, "--max-restarts", "1000", *arguments],
            folder / "launcher.log",
            # Without it, torch 2.13 cannot restart at all: the agent's own store keeps the port.
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        recordings = Recordings(folder)
        with ending(job):
            for _ in range(settings.restart_trials):
                members = calm_members(recordings, settings.workers, settings.calm_steps, job)
                step_ms = undisturbed_step_ms(members, settings.calm_steps)
                victim = generator.randrange(settings.workers)
                time.sleep(generator.uniform(0.0, 2 * step_ms / 1e3))
                killed_at, died_ms = kill(members[victim].pid)
                reached = max(each.commits[-1].step for each in members)
                life = members[0].commits[-1].generation + 1
                members = wait_for_members_of(recordings, life, settings.workers, 1, job)
                trials.append(_trial(members, killed_at, died_ms, step_ms, reached))
    return trials


def _trial(members: list[Recorded], killed_at: int, died_ms: float, step_ms: float, reached: int) -> dict[str, Any]:
    firsts = [member.commits[0] for member in members]
    since = [(note.time - killed_at) / 1e6 for note in firsts]
    milestones = {
        event.name.lower(): max(((member.when(event) or 0) - killed_at) / 1e6 for member in members)
        for event in (Event.STARTED, Event.IMPORTED, Event.READY)
    }
    return {
        "step_ms": step_ms,
        "first_ms": min(since),
        "all_ms": max(since),
        "redone": max(0, reached - firsts[0].step + 1),
        "died_ms": died_ms,
        "milestones": [milestones],
    }
