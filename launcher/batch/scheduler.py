"""Which batch system this process belongs to, and whether others of its kind were started beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .step import find_step

_JOB_VARIABLES = {
    "SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF", "FLUX_JOB_ID": "Flux", "SGE_TASK_ID": "Grid Engine",
    "COBALT_JOBID": "Cobalt",
}  # fmt: skip
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "FLUX_JOB_SIZE")


def name_of_scheduler(environ: Mapping[str, str]) -> str:
    """Empty outside of a batch job."""
    return next((name for variable, name in _JOB_VARIABLES.items() if environ.get(variable)), "")


def company(environ: Mapping[str, str]) -> str:
    """In words: what says that this launcher was, or was to be, started more than once; empty if nothing does."""
    for variable in _MPI_SIZES:
        if _number(environ, variable) > 1:
            return f"this is one of {environ[variable]} processes that were started together ({variable})"
    if environ.get("SLURM_JOB_ID") and find_step(environ) is None and _number(environ, "SLURM_JOB_NUM_NODES") > 1:
        return f"this Slurm job has {environ['SLURM_JOB_NUM_NODES']} nodes, but srun has not started this launcher"
    hosts = _hosts(environ)
    if hosts > 1:
        return f"this {name_of_scheduler(environ)} job has {hosts} hosts"
    return ""


def _hosts(environ: Mapping[str, str]) -> int:
    if environ.get("PBS_JOBID") and environ.get("PBS_NODEFILE"):
        try:
            return len(set(Path(environ["PBS_NODEFILE"]).read_text().split()))
        except OSError:
            return 0
    if environ.get("LSB_JOBID"):
        return len(environ.get("LSB_MCPU_HOSTS", "").split()) // 2 or len(set(environ.get("LSB_HOSTS", "").split()))
    if environ.get("SGE_TASK_ID"):
        return _number(environ, "NHOSTS")
    return 0


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else 0
