"""Named points of the protocol, for tests that make a worker fail exactly there."""

from __future__ import annotations

from collections.abc import Callable

POINTS = ("announced", "connecting", "exchanging", "applying", "copying", "formed", "voting", "voted")

on_reach: Callable[[str, int], None] | None = None
"""Called with the point's name and the generation, on the thread that reached it."""


def reached(point: str, generation: int) -> None:
    if on_reach is not None:
        on_reach(point, generation)
