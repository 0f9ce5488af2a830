"""The server's clock: it stands still while the server itself does.

A server that was stopped, swapped out or starved must not take its own silence for that of the agents, whose messages
wait unread in its sockets. So a gap between two readings that is longer than any wait of its owner does not count, nor
does a moment after it, in which the queued input is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Seconds since its creation in which its owner ran. The owner reads it every `longest_gap / 2` seconds."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, longest_gap: float = 0.5, settling: float = 0.25
    ) -> None:
        self.longest_gap = longest_gap
        self.paused = 0.0
        """Seconds that did not count."""
        self._settling = settling
        self._monotonic = monotonic
        self._last = monotonic()
        self._elapsed = 0.0
        self._stands_until = self._last

    def now(self) -> float:
        reading = self._monotonic()
        gap = reading - self._last
        if gap > self.longest_gap:
            self.paused += gap
            self._stands_until = reading + self._settling
        else:
            standing = max(0.0, min(reading, self._stands_until) - self._last)
            self.paused += standing
            self._elapsed += gap - standing
        self._last = reading
        return self._elapsed
