"""What crashes cost: the job's budget of restarts, growing delays, and the step that crashes whoever takes it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

_LONG_LIFE = 60.0  # a worker that lived this long (seconds) starts its slot's delays afresh
_LONGEST_DELAY = 30.0
_FROM_OUTSIDE = {128 + signal.SIGKILL, 128 + signal.SIGTERM}  # says nothing about the step that the worker was in

Slot = tuple[str, int]  # agent, local rank


@dataclass(frozen=True)
class Verdict:
    """`failure` says in words why the crash fails the job; otherwise the slot is filled again after `delay` seconds."""

    delay: float = 0.0
    failure: str = ""


@dataclass
class CrashBudget:
    """At most `limit` crashes a job; departures, evictions and lost hosts cost nothing."""

    limit: int
    used: int = 0
    _streaks: dict[Slot, int] = field(default_factory=dict)
    _steps: dict[int, str] = field(default_factory=dict)

    def crashed(self, slot: Slot, worker: str, step: int, code: int, lived: float) -> Verdict:
        """Account for one crash of `worker` in step `step` (0 if in none), `lived` seconds after its start."""
        self.used += 1
        if step > 0 and code not in _FROM_OUTSIDE and self._steps.setdefault(step, worker) != worker:
            return Verdict(failure=f"two workers crashed in step {step}")
        if self.used > self.limit:
            crashes = "1 crash" if self.used == 1 else f"{self.used} crashes"
            return Verdict(failure=f"{crashes}, --max-restarts is {self.limit}")
        streak = 0 if lived >= _LONG_LIFE else self._streaks.get(slot, 0)
        self._streaks[slot] = streak + 1
        return Verdict(delay=min(_LONGEST_DELAY, 2.0 ** (streak - 1)) if streak else 0.0)


def by_own_fault(code: int) -> bool:
    """Whether an exit code speaks of the script rather than of somebody who killed it."""
    return code != 0 and code not in _FROM_OUTSIDE


def exit_in_words(code: int) -> str:
    """ "was killed by SIGKILL", "exited with code 3"."""
    if code > 128:
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with code {code}"
