"""How often the kernel has killed processes for memory: a change says what a worker's SIGKILL was."""

from __future__ import annotations

from pathlib import Path

_MACHINE = Path("/proc/vmstat")
_GROUPS = Path("/sys/fs/cgroup")


class MemoryKills:
    """Sampled about once a second, it tells whether a process that has just been killed may have been killed for memory."""

    def __init__(self) -> None:
        self._paths = [path for path in _counters() if path.exists()]
        self._older = self._newer = self._count()

    def sample(self) -> None:
        self._older, self._newer = self._newer, self._count()

    def there_was_one(self) -> bool:
        """Since the sample before the last one, as the kill comes some time before the death is noticed."""
        return self._count() > self._older

    def _count(self) -> int:
        return sum(_counter(path) for path in self._paths)


def _counters() -> list[Path]:
    paths = [_MACHINE]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            paths += [_GROUPS / group.lstrip("/") / "memory.events", _GROUPS / "memory.events"]
        elif "memory" in controllers.split(","):
            folder = _GROUPS / "memory"
            paths += [folder / group.lstrip("/") / "memory.oom_control", folder / "memory.oom_control"]
    return paths


def _counter(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
