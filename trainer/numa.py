"""Binding a worker to the CPUs near its GPU, before its script starts, by torch's own rules: torchrun's --numa-binding."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UsageError
from ..rendezvous import worker_environment


def bind_as_asked(environ: Mapping[str, str]) -> None:
    """Whatever goes wrong is an error, as with torchrun: a worker that runs far from its GPU should not go unnoticed."""
    mode = environ.get(worker_environment.NUMA_BINDING, "")
    if not mode:
        return
    # Imported only where it is asked for: the script may be one that needs no torch.
    try:
        from torch.numa.binding import AffinityMode, NumaOptions, _maybe_apply_numa_binding_to_current_process
    except ImportError as error:
        raise UsageError(
            f"--numa-binding {mode}: this torch cannot do it ({error}): leave it out, or use a newer one"
        ) from error
    device = environ.get("LOCAL_RANK") or environ.get(worker_environment.LOCAL_RANK, "0")
    options = NumaOptions(affinity_mode=AffinityMode(mode))
    _maybe_apply_numa_binding_to_current_process(gpu_index=int(device), numa_options=options)
