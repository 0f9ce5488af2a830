"""How many GPUs this host has, without importing a framework: the agent starts in a fraction of a second and stays small."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError

_DRIVER = Path("/proc/driver/nvidia/gpus")


def count_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a worker may use: `CUDA_VISIBLE_DEVICES` if set, else what the driver has; 0 without any."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return sum(1 for name in names if name.isdecimal() or name.startswith(("GPU-", "MIG-")))
    return _listed_by_nvidia_smi() or _known_to_the_driver()


def _known_to_the_driver() -> int:
    try:
        return sum(1 for _ in _DRIVER.iterdir())
    except OSError:
        return 0


def _listed_by_nvidia_smi() -> int:
    """In a container this sees the container's GPUs, where the driver's folder shows all of the host's."""
    if not Path("/dev/nvidiactl").exists():
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in listed.stdout.splitlines() if line.startswith(b"GPU "))


def count_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def workers_per_node(value: str, where: str, environ: Mapping[str, str]) -> int:
    """What `value` of --nproc-per-node comes to on this host: a number, or auto, gpu or cpu. UsageError if it is none."""
    if value == "cpu":
        return count_cpus()
    if value in ("gpu", "auto"):
        gpus = count_gpus(environ)
        if gpus == 0 and value == "gpu":
            raise UsageError(f"{where} is 'gpu', but this host has no NVIDIA GPU: give a number, or auto")
        return gpus or count_cpus()
    if value == "xpu":
        raise UsageError(f"{where} is 'xpu', but only NVIDIA GPUs are counted: give a number")
    try:
        count = int(value)
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"{where} is {value!r}: give a whole number of at least 1, or auto, gpu or cpu")
    return count
