"""What has happened in a job, counted, for the server's metrics. It goes when the job is forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .effects import Event

FORMING_LIMITS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds


@dataclass
class Tally:
    """`forming` counts the durations up to each of FORMING_LIMITS, and then those above."""

    announced: Counter[str] = field(default_factory=Counter)  # generations by cause
    formed: Counter[str] = field(default_factory=Counter)  # generations by cause
    events: Counter[str] = field(default_factory=Counter)  # by kind
    joined: int = 0  # workers
    forming: list[int] = field(default_factory=lambda: [0] * (len(FORMING_LIMITS) + 1))
    forming_seconds: float = 0.0
    store_errors: int = 0
    _cause: str = ""
    _joiners: int = 0

    def take(self, event: Event) -> None:
        self.events[event.kind] += 1
        if event.kind == "announced":
            self._cause, self._joiners = str(event.fields["cause"]), int(event.fields["joiners"])
            self.announced[self._cause] += 1
        elif event.kind == "formed":
            self.formed[self._cause] += 1
            self.joined += self._joiners
            seconds = float(event.fields["seconds"])
            self.forming[sum(seconds > limit for limit in FORMING_LIMITS)] += 1
            self.forming_seconds += seconds
