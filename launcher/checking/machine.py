"""What this machine allows a process: limits, memory, processors, time."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from pathlib import Path

from ..devices import count_cpus
from .finding import Finding

_FEW_FILES = 1024
_SMALL_SHM = 1 << 30  # bytes
_UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2)
_MI = 1 << 20


def look_at_the_machine() -> list[Finding]:
    return [_python(), _kernel(), _processors(), _memory(), _open_files(), _processes(), _shared_memory(), _clock()]


def _python() -> Finding:
    text = f"{platform.python_version()} ({sys.executable})"
    return Finding("python", text)


def _kernel() -> Finding:
    text = f"{platform.system()} {platform.release()}"
    if not hasattr(os, "pidfd_open") or platform.system() != "Linux":
        return Finding("kernel", text, "fails", "run on Linux 5.3 or newer: workers are watched with pidfd_open(2)")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Finding(
            "kernel", text, "fails", f"pidfd_open(2) is not allowed here ({error.strerror}): see the sandbox's rules"
        )
    return Finding("kernel", text)


def _processors() -> Finding:
    count, quota = count_cpus(), _cgroup_number("cpu.max", "cpu/cpu.cfs_quota_us")
    if quota and quota < 100_000:
        return Finding(
            "processors", f"{count}, of which a quota allows {quota / 100_000:g}", "look", "ask for more CPU"
        )
    return Finding("processors", str(count))


def _memory() -> Finding:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _cgroup_number("memory.max", "memory/memory.limit_in_bytes")
    bound = f", of which the control group allows {_size(limit)}" if limit and limit < total else ""
    return Finding("memory", f"{_size(total)}{bound}; {_size(free)} available")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} (at most {hard})"
    if soft < _FEW_FILES:
        return Finding(
            "open files", text, "look", "ulimit -n 65536: rings, workers and data loaders hold many descriptors"
        )
    return Finding("open files", text)


def _processes() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    group = _cgroup_number("pids.max", "pids/pids.max")
    allowed = [limit for limit in (soft, group) if limit and limit > 0]
    text = str(min(allowed)) if allowed else "no limit"
    if allowed and min(allowed) < 256:
        return Finding(
            "processes", text, "look", "raise ulimit -u, or the container's limit (--pids-limit): threads count too"
        )
    return Finding("processes", text)


def _shared_memory() -> Finding:
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding(
            "/dev/shm",
            f"missing: {error.strerror}",
            "look",
            "mount a tmpfs there: data loaders use it",
        )
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    text = f"{_size(size)}, {_size(free)} free"
    if not os.access("/dev/shm", os.W_OK):
        return Finding("/dev/shm", text, "look", "it cannot be written to: data loaders with workers need it")
    if free < _SMALL_SHM:
        advice = (
            "data loaders and NCCL need it. docker: --shm-size=1g or more; Kubernetes: an emptyDir with medium Memory"
        )
        return Finding("/dev/shm", text, "look", advice)
    return Finding("/dev/shm", text)


def _clock() -> Finding:
    buffer = ctypes.create_string_buffer(512)  # struct timex, with modes 0: only ask
    if ctypes.CDLL(None).adjtimex(buffer) < 0:
        return Finding("clock", "the kernel does not tell whether it is synchronised")
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    if status & _UNSYNCHRONISED:
        advice = "run chrony or systemd-timesyncd: logs of several hosts cannot be compared, and certificates may seem expired"
        return Finding("clock", "not synchronised, as far as the kernel knows", "look", advice)
    return Finding("clock", "synchronised")


def _cgroup_number(second: str, first: str) -> int:
    """The first number in a file of the control group (version 2 or 1); 0 for none, or no limit."""
    root = Path("/sys/fs/cgroup")
    for path in (root / second, root / first):
        try:
            word = path.read_text().split()[0]
        except (OSError, IndexError):
            continue
        number = int(word) if word.lstrip("-").isdecimal() else 0
        return number if 0 < number < 1 << 60 else 0
    return 0


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count // _MI} MiB"
