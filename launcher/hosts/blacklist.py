"""Hosts that have failed: for how long each of them is not used again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cooldown:
    """Between `least` and `most` seconds, twice as long from one failure of a host to its next."""

    least: float
    most: float

    def delay(self, failures: int, chance: float) -> float:
        """After the `failures`-th failure; `chance` from 0 to 1 keeps hosts that failed together apart.

        As Horovod's `HostState` has it: least * 2^failures + chance * least, within the range.
        """
        grown = self.least * 2.0 ** min(failures, 64) + chance * self.least
        return max(self.least, min(self.most, grown))


class Blacklist:
    """By host. Without a cooldown a failed host stays on it for good. Times are those of one clock, in seconds."""

    def __init__(self, cooldown: Cooldown | None, chance: Callable[[], float]) -> None:
        self._cooldown = cooldown
        self._chance = chance
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def add(self, host: str, now: float) -> float:
        """The seconds for which the host is not used; infinity for good."""
        failures = self._failures[host] = self._failures.get(host, 0) + 1
        delay = math.inf if self._cooldown is None else self._cooldown.delay(failures, self._chance())
        self._until[host] = now + delay
        return delay

    def holds(self, host: str, now: float) -> bool:
        return now < self._until.get(host, -math.inf)

    def holds_for_good(self, host: str) -> bool:
        return self._until.get(host) == math.inf
