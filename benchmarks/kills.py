"""Kill -9 of one worker of four, at a random phase of a step: how soon the survivors commit again."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .jobs import agent, ending
from .observing import calm_members, observe, undisturbed_step_ms, wait_for_generation
from .settings import Settings, scratch_folder
from .timeline import Recordings

_TRIALS_OF_A_JOB = 12  # a slot that crashes again and again waits longer each time


def kill(pid: int) -> tuple[int, float]:
    """When it was killed (ns), and after how many ms the kernel had taken it apart: nobody can notice its death before."""
    descriptor = os.pidfd_open(pid)
    try:
        killed_at = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [], 60)
        return killed_at, (time.monotonic_ns() - killed_at) / 1e6
    finally:
        os.close(descriptor)


def measure(settings: Settings) -> list[dict[str, Any]]:
    """One entry for each trial: an `Observation`, and who was killed."""
    generator = random.Random(settings.seed)
    trials: list[dict[str, Any]] = []
    while len(trials) < settings.trials:
        trials += _one_job(settings, min(_TRIALS_OF_A_JOB, settings.trials - len(trials)), generator)
    return trials


def _one_job(settings: Settings, count: int, generator: random.Random) -> list[dict[str, Any]]:
    trials = []
    with scratch_folder() as name:
        folder = Path(name)
        wait = str(settings.replacement_wait)
        arguments = ["--timeline", name, "--replacement-wait", wait, *settings.workload_flags()]
        size = str(settings.workers)
        flags = ["--min", "1", "--max", size, "--nproc-per-node", size, "--max-restarts", "1000"]
        job = agent(flags, "benchmarks.workload", arguments, folder / "agent.log")
        recordings = Recordings(folder)
        with ending(job):
            for _ in range(count):
                members = calm_members(recordings, settings.workers, settings.calm_steps, job)
                (folder / "running").touch()
                step_ms = undisturbed_step_ms(members, settings.calm_steps)
                victim = generator.randrange(settings.workers)
                time.sleep(generator.uniform(0.0, 2 * step_ms / 1e3))
                before = members[victim].commits[-1].generation
                killed_at, died_ms = kill(members[victim].pid)
                survivors = members[:victim] + members[victim + 1 :]
                wait_for_generation(survivors, before, 4, job)
                trials.append(
                    {"victim": victim, "died_ms": died_ms, **asdict(observe(survivors, before, killed_at, step_ms))}
                )
    return trials
