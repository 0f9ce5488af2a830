"""Putting a Slurm job back into the queue after its workers have left in order.

Slurm does so itself with a preempted job, but only if that still runs when its grace time is over: one that leaves as it
is asked to counts as completed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from .step import find_step

WHEN = ("preempted", "always", "never")
_LIMIT = 20.0  # seconds for Slurm's controller to answer


def job_to_requeue(environ: Mapping[str, str]) -> str:
    """The number of the batch job that this process looks after; empty for all but the first task of a step."""
    step = find_step(environ)
    return environ["SLURM_JOB_ID"] if step is not None and step.serves else ""


def requeue(job: str, in_any_case: bool) -> str:
    """What there is to say of it, perhaps nothing. A job that is not being preempted is left alone, unless `in_any_case`."""
    shown, about = _ask("show", "job", job)
    if not shown or (not in_any_case and not is_preempted(about)):
        return ""
    done, answer = _ask("requeue", job)
    if done:
        return f"Slurm job {job} is back in the queue"
    return f"Slurm job {job} could not be put back into the queue: {answer}. `scontrol requeue {job}` does it by hand"


def is_preempted(about: str) -> bool:
    """From what `scontrol show job` says of a job that is still running: whether Slurm would requeue it when it is gone."""
    fields = dict(re.findall(r"(\S+?)=(\S*)", about))
    named = fields.get("JobState") in ("RUNNING", "PREEMPTED") and fields.get("Requeue") == "1"
    return named and fields.get("PreemptTime", "None") != "None"


def _ask(*words: str) -> tuple[bool, str]:
    try:
        answer = subprocess.run(
            ["scontrol", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return answer.returncode == 0, (answer.stdout + answer.stderr).strip()
