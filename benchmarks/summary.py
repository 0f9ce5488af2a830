"""Many measured values in a few numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Summary:
    """`p95` is the smallest value that at least 95 % of the values do not exceed; `worst` is the largest."""

    count: int
    median: float
    p95: float
    worst: float


def summarise(values: Sequence[float]) -> Summary:
    if not values:
        return Summary(0, math.nan, math.nan, math.nan)
    ordered = sorted(values)
    return Summary(len(ordered), median(ordered), ordered[math.ceil(0.95 * len(ordered)) - 1], ordered[-1])


def interval_of_median(values: Sequence[float], samples: int = 4000) -> tuple[float, float]:
    """A 95 % bootstrap interval."""
    generator = random.Random(0)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(samples))
    return medians[int(0.025 * samples)], medians[int(0.975 * samples)]
