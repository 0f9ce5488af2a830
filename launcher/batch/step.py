"""A job step of Slurm: what each of its tasks knows of the whole from its environment alone.

All tasks must come to the same conclusions without a word between them: who serves, and where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .node_list import nodes, numbers

# Below the ports that Linux and Slurm give away (32768 and 60001 on), torch's and ours (29400, 29500), and above those
# that people make of a job's number by hand (10000 and 15000 plus its last four digits).
_FIRST_PORT, _PORTS = 25000, 4000
_STEPS_APART = 7  # so that the next steps of a job and the first steps of the next jobs do not want the same ports


@dataclass(frozen=True)
class Step:
    """This task's view. `nodes` are the names of all hosts in Slurm's order; the first task on the first one serves.

    `tasks_here` are the tasks on this host, of which this is number `local_id`.
    """

    job: str
    nodes: tuple[str, ...]
    node: str
    tasks: int
    tasks_here: int
    local_id: int
    port: int

    @property
    def serves(self) -> bool:
        return self.node == self.nodes[0] and self.local_id == 0


def find_step(environ: Mapping[str, str]) -> Step | None:
    """None outside of a step that srun has started."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    names = nodes(environ.get("SLURM_STEP_NODELIST", ""))
    if not (job.isdecimal() and step.isdecimal() and names):
        return None
    per_node = numbers(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    index = _number(environ, "SLURM_NODEID", 0)
    return Step(
        job=job_name(environ),
        nodes=tuple(names),
        node=environ.get("SLURMD_NODENAME") or (names[index] if index < len(names) else names[0]),
        tasks=_number(environ, "SLURM_STEP_NUM_TASKS", sum(per_node) or 1),
        tasks_here=per_node[index] if index < len(per_node) else 1,
        local_id=_number(environ, "SLURM_LOCALID", 0),
        port=_FIRST_PORT + (_STEPS_APART * int(job) + int(step)) % _PORTS,
    )


def job_name(environ: Mapping[str, str]) -> str:
    """One for each step, and the same in each life of a job that is requeued; no two jobs of a site share it.

    An element of an array has a job number of its own, and so has the whole of a heterogeneous job.
    """
    cluster = re.sub(r"[^A-Za-z0-9-]", "-", environ.get("SLURM_CLUSTER_NAME", ""))[:30]
    step = environ.get("SLURM_STEP_ID", "")
    parts = ["slurm", *([cluster] if cluster else []), environ["SLURM_JOB_ID"]]
    return "-".join(parts) + (f".{step}" if step.isdecimal() else "")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else default
