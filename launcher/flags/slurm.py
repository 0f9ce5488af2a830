"""What a job step of Slurm says of the job. It has no flags; how its agents meet is for options.py and `launcher/batch`."""

from __future__ import annotations

from collections.abc import Mapping

from ..batch.step import find_step
from .words import Said

DRAIN_SIGNALS = "SIGUSR1"  # what `sbatch --signal=USR1@60` sends to every process of a step


def said(environ: Mapping[str, str]) -> dict[str, Said]:
    """Empty outside of a step."""
    step = find_step(environ)
    if step is None:
        return {}
    return {"job": Said(step.job, "SLURM_JOB_ID"), "drain_signals": Said(DRAIN_SIGNALS, "Slurm")}
