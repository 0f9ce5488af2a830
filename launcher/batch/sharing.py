"""Several tasks of a step on one host share its GPUs: which of them are this task's."""

from __future__ import annotations

from collections.abc import Mapping

from .step import find_step

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def own_share(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set, perhaps none.

    Without --gpus-per-task or a binding, Slurm shows all of a node's GPUs to each of its tasks, whose workers would all
    take the first one.
    """
    step = find_step(environ)
    visible = [name for name in environ.get(_VISIBLE, "").split(",") if name.strip()]
    if step is None or step.tasks_here == 1 or not visible or environ.get("SLURM_GPUS_ON_NODE") != str(len(visible)):
        return {}
    first, last = (len(visible) * number // step.tasks_here for number in (step.local_id, step.local_id + 1))
    return {_VISIBLE: ",".join(visible[first:last])} if last > first else {}
