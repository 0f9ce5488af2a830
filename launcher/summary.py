"""What an agent has seen of its job, in about ten lines at its end. Pure: it is told what happens, and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from . import exits

_MOST_ROWS = 5
_MOST_CRASHES = 3


@dataclass(frozen=True)
class _Generation:
    number: int
    world_size: int
    cause: str
    reason: str
    at: float


@dataclass(frozen=True)
class _Crash:
    code: int
    step: int
    reason: str


class Summary:
    """Times are seconds of one clock. A ring counts as training from its release until it is broken, or left for the next."""

    def __init__(self, job: str, now: float) -> None:
        self._job = job
        self._began = now
        self._generations: list[_Generation] = []
        self._crashes: list[_Crash] = []
        self._step = 0
        self._samples = 0.0
        self._trained = 0.0
        self._training_since: float | None = None
        self._first_release: float | None = None

    def announced(self, number: int, world_size: int, cause: str, reason: str, abort: bool, now: float) -> None:
        if self._generations and number <= self._generations[-1].number:
            return
        self._generations.append(_Generation(number, world_size, cause, reason, now))
        if abort:
            self.interrupted(now)

    def released(self, parked: bool, now: float) -> None:
        """The newest generation may train; a parked one waits."""
        if parked:
            self.interrupted(now)
        elif self._training_since is None:
            self._training_since = now
            if self._first_release is None:
                self._first_release = now

    def interrupted(self, now: float) -> None:
        """The ring is broken, or about to be left: no step is made until the next release."""
        if self._training_since is not None:
            self._trained += now - self._training_since
            self._training_since = None

    def progressed(self, step: int, samples: float) -> None:
        """`step` is the number of the one that a worker is in, `samples` are applied by the whole job."""
        self._step = max(self._step, step)
        self._samples = max(self._samples, samples)

    def crashed(self, code: int, step: int, reason: str) -> None:
        self._crashes.append(_Crash(code, step, reason))

    def lines(self, now: float) -> list[str]:
        """Empty if no ring has ever trained."""
        if self._first_release is None:
            return []
        self.interrupted(now)
        return [
            f"summary of job {self._job!r}, as seen from here:",
            f"  duration     {self._duration(now)}",
            *self._changes(),
            *self._crashes_in_words(),
            f"  goodput      {self._goodput(now)}",
        ]

    def _duration(self, now: float) -> str:
        text = in_words(now - self._began)
        if self._step > 1:
            text += f", {self._step - 1:,} steps"
        if self._samples:
            rate = self._samples / self._trained if self._trained else 0.0
            text += f", {self._samples:,.0f} samples ({rate:,.0f} a second)"
        return text

    def _changes(self) -> list[str]:
        counts = Counter(generation.cause or "start" for generation in self._generations)
        causes = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
        rows = self._generations[1:][-_MOST_ROWS:]
        lines = [f"  generations  {len(self._generations)} ({causes})"]
        if len(self._generations) - 1 > len(rows):
            lines[0] += f"; the last {len(rows)}:"
        for generation in rows:
            workers = "1 worker" if generation.world_size == 1 else f"{generation.world_size} workers"
            after = in_words(generation.at - self._began)
            why = ": ".join(filter(None, (generation.cause, generation.reason)))
            lines.append(f"    {generation.number} after {after}, {workers}: {why}")
        return lines

    def _crashes_in_words(self) -> list[str]:
        if not self._crashes:
            return []
        shown = [_in_words(crash) for crash in self._crashes[:_MOST_CRASHES]]
        more = len(self._crashes) - len(shown)
        return [f"  crashes      {len(self._crashes)} here: {'; '.join(shown)}{f'; and {more} more' if more else ''}"]

    def _goodput(self, now: float) -> str:
        assert self._first_release is not None
        whole, start = now - self._began, self._first_release - self._began
        rest = max(0.0, whole - start - self._trained)
        share = 100 * self._trained / whole if whole > 0 else 0.0
        return (
            f"{share:.1f} % of the time in a ring that trains; {in_words(start)} until the first one,"
            f" {in_words(rest)} in changes and at the end"
        )


def in_words(seconds: float) -> str:
    """ "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _in_words(crash: _Crash) -> str:
    step = f" in step {crash.step}" if crash.step > 0 else ""
    reason = f", {crash.reason.splitlines()[0][:80]}" if crash.reason else ""
    return f"{exits.in_words(crash.code)}{step}{reason}"
