"""A worker that joins and one that is drained, each with an agent of its own: how long the others pause."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .jobs import Program, agent, ending, wait_for
from .observing import Observation, calm_members, observe, undisturbed_step_ms, wait_for_generation
from .settings import Settings, scratch_folder
from .timeline import Event, Recorded, Recordings

_URL = re.compile(r"http://[\w.\[\]:]+:\d+")


def measure(settings: Settings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The joins and the drains, one entry for each trial."""
    generator = random.Random(settings.seed)
    joins, drains = [], []
    with scratch_folder() as name:
        folder = Path(name)
        arguments = ["--timeline", name, *settings.workload_flags()]
        few, size = str(settings.workers - 1), str(settings.workers)
        flags = ["--min", "1", "--max", size, "--nproc-per-node", few]
        job = agent(flags, "benchmarks.workload", arguments, folder / "agent.log")
        recordings = Recordings(folder)
        with ending(job):
            url = wait_for(lambda: _URL.search(job.output), 30, "the server's address", job).group(0)  # type: ignore[union-attr]
            for trial in range(settings.trials):
                members = calm_members(recordings, settings.workers - 1, settings.calm_steps, job)
                step_ms = undisturbed_step_ms(members, settings.calm_steps)
                flags = ["--rendezvous", url, "--nproc-per-node", "1"]
                guest = agent(flags, "benchmarks.workload", arguments, folder / f"guest-{trial}.log")
                with ending(guest):
                    joins.append(_join(settings, recordings, members, guest, step_ms, job))
                    drains.append(_drain(settings, recordings, guest, generator, job))
    return joins, drains


def _join(
    settings: Settings,
    recordings: Recordings,
    members: Sequence[Recorded],
    guest: Program,
    step_ms: float,
    job: Program,
) -> dict[str, Any]:
    before = members[0].commits[-1].generation
    wait_for_generation(members, before, 4, job, guest)
    everybody = calm_members(recordings, settings.workers, 4, job, guest)
    (joiner,) = [each for each in everybody if each.pid not in {member.pid for member in members}]
    heard = min(_heard(member, before) for member in members)
    observation = observe(members, before, heard, step_ms)
    start = {
        event.name.lower(): (joiner.when(event) - guest.started) / 1e6  # type: ignore[operator]
        for event in (Event.STARTED, Event.IMPORTED, Event.READY, Event.COMMITTED)
    }
    change = joiner.changes[0]
    start["changed"] = (change.time - guest.started) / 1e6
    copy_ms = (change.phases["copied"] - change.phases["connected"]) / 1e6
    return {
        **asdict(observation),
        "copy_ms": copy_ms,
        "joiner_start_ms": start,
        "joiner": _phases(joiner, before, heard),
    }


def _drain(
    settings: Settings, recordings: Recordings, guest: Program, generator: random.Random, job: Program
) -> dict[str, Any]:
    everybody = calm_members(recordings, settings.workers, settings.calm_steps, job, guest)
    step_ms = undisturbed_step_ms(everybody, settings.calm_steps)
    before = everybody[0].commits[-1].generation
    time.sleep(generator.uniform(0.0, 2 * step_ms / 1e3))
    asked_at = time.monotonic_ns()
    guest.process.send_signal(signal.SIGTERM)
    members = everybody[:-1]  # joiners come last
    wait_for_generation(members, before, 4, job)
    observation: Observation = observe(members, before, asked_at, step_ms)
    code = guest.process.wait(30)
    left_ms = (time.monotonic_ns() - asked_at) / 1e6
    return {**asdict(observation), "exit_code": code, "left_ms": left_ms}


def _heard(member: Recorded, before: int) -> int:
    return next(change.phases["heard"] for change in member.changes if change.generation > before)


def _phases(member: Recorded, before: int, since: int) -> dict[str, float]:
    change = next(change for change in member.changes if change.generation > before)
    return {name: (value - since) / 1e6 for name, value in change.phases.items()}
