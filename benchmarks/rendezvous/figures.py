"""From trials to the few numbers of each size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

CHANGES = {
    "crash": ("crash", "lost", "a worker's exit, reported by its agent"),
    "vanish": ("vanish", "lost", "an agent's closed connection"),
    "join": ("crash", "joined", "a fresh worker that is ready"),
}
"""Name -> kind of trial, which of its changes, in words."""


@dataclass(frozen=True)
class Change:
    """Milliseconds since its cause. `told` and `released` of all agents in all trials, the last ones of each trial."""

    told_median: float
    told_p99: float
    last_told: float
    last_told_worst: float
    last_released: float
    last_released_worst: float
    cpu_ms: float
    bytes: float


def change(result: Mapping[str, Any], name: str) -> Change:
    kind, which, _ = CHANGES[name]
    trials = [trial[which] for trial in result["trials"] if trial["kind"] == kind]
    told = sorted(at for trial in trials for at in trial["told_ms"])
    last_told = [max(trial["told_ms"]) for trial in trials]
    last_released = [max(trial["released_ms"]) for trial in trials]
    return Change(
        told_median=median(told),
        told_p99=quantile(told, 0.99),
        last_told=median(last_told),
        last_told_worst=max(last_told),
        last_released=median(last_released),
        last_released_worst=max(last_released),
        cpu_ms=1e3 * mean(trial["cpu"] for trial in trials),
        bytes=mean(trial["bytes"] for trial in trials),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def mean(values: Iterable[float]) -> float:
    """The clock of a process's CPU time is coarse: the mean of many trials sees through it, their median does not."""
    known = list(values)
    return sum(known) / len(known)


def formed_ms(result: Mapping[str, Any]) -> float:
    """From the last arrival until all are released."""
    return float(max(result["arrival"]["released_ms"]))


def memory_per_agent(result: Mapping[str, Any]) -> float:
    """Bytes."""
    return float(result["memory"]["full"] - result["memory"]["empty"]) / int(result["agents"])
