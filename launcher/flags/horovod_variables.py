"""What horovodrun's flags about Horovod's core say to the real Horovod: its variables, as horovodrun sets them."""

from __future__ import annotations

from ...errors import UsageError
from .words import whole_number

_VARIABLES = {
    "--fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD",
    "--cycle-time-ms": "HOROVOD_CYCLE_TIME",
    "--cache-capacity": "HOROVOD_CACHE_CAPACITY",
    "--hierarchical-allreduce": "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "--hierarchical-allgather": "HOROVOD_HIERARCHICAL_ALLGATHER",
    "--torus-allreduce": "HOROVOD_TORUS_ALLREDUCE",
    "--autotune": "HOROVOD_AUTOTUNE",
    "--autotune-log-file": "HOROVOD_AUTOTUNE_LOG",
    "--autotune-warmup-samples": "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    "--autotune-steps-per-sample": "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    "--autotune-bayes-opt-max-samples": "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    "--autotune-gaussian-process-noise": "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    "--timeline-filename": "HOROVOD_TIMELINE",
    "--timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "--stall-check-warning-time-seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "--tcp": "NCCL_IB_DISABLE",
    "--num-nccl-streams": "HOROVOD_NUM_NCCL_STREAMS",
    "--thread-affinity": "HOROVOD_THREAD_AFFINITY",
    "--gloo-timeout-seconds": "HOROVOD_GLOO_TIMEOUT_SECONDS",
}
_MEGABYTE = 1 << 20  # bytes


def variable_of(flag: str, value: str) -> tuple[str, str] | None:
    """Name and value; a flag without a value is on. None if it says nothing to Horovod. UsageError for what is no number."""
    name = _VARIABLES.get(flag)
    if name is None:
        return None
    if flag != "--fusion-threshold-mb":
        return name, value or "1"
    try:
        return name, str(_MEGABYTE * whole_number(value, least=0))
    except UsageError as error:
        raise UsageError(f"{flag} is {value!r}: {error}") from None
