"""What a job step of Slurm says of the job. It has no flags; how its agents meet is in `launcher/batch`."""

from __future__ import annotations

from collections.abc import Mapping

from ..batch.step import find_step
from .words import Said

WHERE = "SLURM_JOB_ID"
EXAMPLES = ("srun elastic-launch --min 2 --max 8 train.py              # under Slurm",)
_SIGNALS = "SIGTERM,SIGHUP,SIGQUIT,SIGUSR1"  # the last one is what `sbatch --signal=USR1@60` sends to a whole step


def said(environ: Mapping[str, str]) -> dict[str, Said]:
    """Empty outside of a step."""
    step = find_step(environ)
    if step is None:
        return {}
    words = {"job": Said(step.job, WHERE), "signals_to_handle": Said(_SIGNALS, WHERE)}
    if step.tasks > 1:
        words["endpoint"] = Said(step.nodes[0], WHERE)
    return words
