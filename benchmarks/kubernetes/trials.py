"""One pod after the other is taken from a job; another takes its place, and joins the others when it is ready."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.jobs import wait_for
from benchmarks.observing import LIMIT, calm_members, observe, undisturbed_step_ms, wait_for_generation
from benchmarks.timeline import Event, Recorded
from elastic_launch.k8s.cluster import Cluster

from . import job as jobs
from .job import Job
from .preemptor import Preemptor, priority_classes
from .settings import Settings

Trial = dict[str, Any]
Take = Callable[[Sequence[Recorded]], Recorded]
"""Takes the pod of one of these members, and says which one that was."""


def deletes(cluster: Cluster, settings: Settings, force: bool) -> tuple[list[Trial], list[Trial]]:
    """The deletions and the joins that follow, one entry for each trial."""
    generator = random.Random(settings.seed)
    how = ["--grace-period=0", "--force"] if force else []
    with jobs.running(cluster, settings) as job:

        def take(members: Sequence[Recorded]) -> Recorded:
            victim = generator.choice(members)
            job.kubectl("delete", "pod", job.pods.name_of(victim.place), "--wait=false", *how)
            return victim

        return _rounds(job, settings, generator, take, lambda: None)


def preemptions(cluster: Cluster, settings: Settings) -> tuple[list[Trial], list[Trial]]:
    """As `deletes`: a more important pod, which does not fit beside the job's, has the scheduler remove one."""
    generator = random.Random(settings.seed)
    with priority_classes(cluster) as (low, high):
        with jobs.running(cluster, settings, "--cpu", settings.cpu, "--priority-class", low) as job:
            preemptor = Preemptor(cluster, high, settings.cpu)

            def take(members: Sequence[Recorded]) -> Recorded:
                preemptor.come()

                def victim() -> list[Recorded]:
                    return [each for each in members if job.pods.lives[each.place].leaving]

                return wait_for(victim, LIMIT, "a pod that the scheduler removes")[0]

            return _rounds(job, settings, generator, take, preemptor.go)


def _rounds(
    job: Job, settings: Settings, generator: random.Random, take: Take, give_back: Callable[[], None]
) -> tuple[list[Trial], list[Trial]]:
    taken, joined = [], []
    for _ in range(settings.trials):
        members = calm_members(job.recordings, settings.workers, settings.calm_steps)
        step_ms = undisturbed_step_ms(members, settings.calm_steps)
        time.sleep(generator.uniform(0.0, 2 * step_ms / 1e3))
        before = members[0].commits[-1].generation
        asked_at = time.monotonic_ns()
        victim = take(members)
        survivors = [each for each in members if each is not victim]
        wait_for_generation(survivors, before, 4)
        observation = observe(survivors, before, asked_at, step_ms)
        give_back()
        joined.append(_join(job, settings, survivors, step_ms))
        life = job.pods.lives[victim.place]
        exited = {"exit_code": life.exit_code, "deleted_ms": (life.leaving - asked_at) / 1e6 if life.leaving else None}
        around = {"causes": _causes(survivors, before), "load": os.getloadavg()[0]}
        taken.append({**asdict(observation), **exited, **around})
        print(f"  gap {observation.gap_ms:.0f} ms, then {joined[-1]['gap_ms']:.0f} ms; S {step_ms:.0f} ms", flush=True)
    return taken, joined


def _join(job: Job, settings: Settings, survivors: Sequence[Recorded], step_ms: float) -> Trial:
    everybody = calm_members(job.recordings, settings.workers, 4)
    (joiner,) = [each for each in everybody if each not in survivors]
    before = joiner.commits[0].generation - 1
    heard = min(_heard(each, before) for each in survivors)
    life = job.pods.lives[joiner.place]
    moments = {"running": life.running}
    for event in (Event.STARTED, Event.IMPORTED, Event.READY, Event.COMMITTED):
        moments[event.name.lower()] = joiner.when(event) or 0
    return {
        **asdict(observe(survivors, before, heard, step_ms)),
        "since_created_ms": {name: (moment - life.created) / 1e6 for name, moment in moments.items()},
    }


def _heard(member: Recorded, before: int) -> int:
    return next(change.phases["heard"] for change in member.changes if change.generation > before)


def _causes(members: Sequence[Recorded], before: int) -> list[str]:
    """Of all changes since, as each of them went through them."""
    return sorted({change.cause for each in members for change in each.changes if change.generation > before})
