"""How fast a worker goes, from what its agent's heartbeats say of it now and then."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY = 10.0  # seconds after which an earlier speed counts for a third


@dataclass
class Pace:
    """`step` is the number of the step that the worker is in, `samples` are those that the whole job has applied."""

    step: int = 0
    samples: float = 0.0
    _since: float = 0.0  # when it was first seen in this step
    _steps: float = 0.0  # a second, smoothed
    _samples: float = 0.0

    def heard(self, step: int, samples: float, now: float) -> None:
        """A worker that has gone back, or was never heard of before, starts afresh."""
        if step == self.step:
            return
        elapsed = now - self._since
        if self.step == 0 or step < self.step or elapsed <= 0:
            self._steps = self._samples = 0.0
        else:
            fresh = 1.0 if self._steps == 0 else 1 - math.exp(-elapsed / _MEMORY)
            self._steps += fresh * ((step - self.step) / elapsed - self._steps)
            self._samples += fresh * (max(0.0, samples - self.samples) / elapsed - self._samples)
        self.step, self.samples, self._since = step, samples, now

    def speed(self, now: float) -> tuple[float, float]:
        """Steps and samples a second. They fall from the moment on when the next step should have come."""
        idle = now - self._since
        late = min(1.0, 1.0 / (idle * self._steps)) if idle > 0 and self._steps > 0 else 1.0
        return self._steps * late, self._samples * late
