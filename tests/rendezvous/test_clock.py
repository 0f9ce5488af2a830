from __future__ import annotations

import pytest

from elastic_launch.rendezvous.clock import AwakeClock


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def passes(time: Time, clock: AwakeClock, seconds: float, at_a_time: float = 0.1) -> float:
    end = time.now + seconds
    while time.now < end:
        time.now = min(time.now + at_a_time, end)
        clock.now()
    return clock.now()


def test_the_clock_counts_seconds_from_its_creation() -> None:
    time = Time()
    clock = AwakeClock(time)
    assert clock.now() == 0
    assert passes(time, clock, 3.0) == pytest.approx(3.0)
    assert clock.paused == 0


def test_a_pause_does_not_count_and_neither_does_the_moment_after_it() -> None:
    time = Time()
    clock = AwakeClock(time, longest_gap=0.5, settling=0.25)
    passes(time, clock, 1.0)
    time.now += 60
    assert clock.now() == pytest.approx(1.0)
    assert passes(time, clock, 0.25) == pytest.approx(1.0)
    assert passes(time, clock, 1.0) == pytest.approx(2.0)
    assert clock.paused == pytest.approx(60.25)


def test_the_clock_never_goes_back() -> None:
    time = Time()
    clock = AwakeClock(time)
    readings = []
    for step in (0.1, 0.6, 0.01, 0.4, 0.49, 5.0, 0.2, 0.2, 0.0):
        time.now += step
        readings.append(clock.now())
    assert readings == sorted(readings)
