"""Members that ask for collectives in any order, on real rings between threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from elastic_launch.errors import RingError
from elastic_launch.horovod import collectives
from elastic_launch.horovod.common.exceptions import HorovodInternalError, MismatchError
from elastic_launch.horovod.engine import Engine
from elastic_launch.trainer.ring.tcp.ring import TcpRing

LIMIT = 20.0


class Meeting:
    """Where the members of a test find each other."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: float | None = None) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, LIMIT), key
            return self._values[key]


class Crew:
    """Engines on a formed ring; `together` has each of them do something, each on a thread of its own."""

    def __init__(self, size: int, stall_limits: Sequence[float] | None = None) -> None:
        meeting = Meeting()
        self.rings = [TcpRing("crew", rank, size) for rank in range(size)]
        self._threads = ThreadPoolExecutor(size)
        list(self._threads.map(lambda ring: ring.form(meeting), self.rings))
        limits = stall_limits or [300.0] * size
        self.engines = [Engine(ring, ring.rank, size, limits[ring.rank]) for ring in self.rings]
        for ring, engine in zip(self.rings, self.engines, strict=True):
            ring.on_abort(lambda reason, engine=engine: engine.fail(RingError(reason)))

    def together(self, what: Callable[[Engine], Any]) -> list[Any]:
        return [future.result(LIMIT) for future in [self._threads.submit(what, engine) for engine in self.engines]]

    def end(self) -> None:
        for ring in self.rings:
            ring.close()
        self._threads.shutdown()


@pytest.fixture
def make_crew() -> Iterator[Callable[..., Crew]]:
    crews: list[Crew] = []

    def make(*arguments: Any) -> Crew:
        crews.append(Crew(*arguments))
        return crews[-1]

    yield make
    for crew in crews:
        crew.end()


def start(engine: Engine, name: str, value: float = 1.0, size: int = 3) -> Any:
    return collectives.start(engine, "allreduce", np.full(size, value), (size,), name, operation="sum")


def test_requests_are_matched_by_name_in_whatever_order_they_come(make_crew: Callable[..., Crew]) -> None:
    def ask(engine: Engine) -> list[float]:
        names = [f"gradient.{index}" for index in range(20)]
        order = names[engine.rank :: 2] + names[1 - engine.rank :: 2]
        asked = {name: start(engine, name, float(index)) for index, name in enumerate(order)}
        return [float(asked[name].wait().memory[0]) for name in names]

    first, second = make_crew(2).together(ask)
    assert first == second


def test_one_that_asks_late_is_waited_for_and_finds_the_others(make_crew: Callable[..., Crew]) -> None:
    crew = make_crew(3)
    early = [start(engine, "late") for engine in crew.engines[:2]]
    others = [start(engine, "early") for engine in crew.engines]
    assert [each.wait().memory[0] for each in others] == [3.0] * 3
    assert not any(each.is_over for each in early)
    assert start(crew.engines[2], "late").wait().memory[0] == 3.0
    assert [each.wait().memory[0] for each in early] == [3.0] * 2


def test_a_name_that_is_under_way_cannot_be_asked_for_again(make_crew: Callable[..., Crew]) -> None:
    crew = make_crew(2)
    asked = start(crew.engines[0], "twice")
    with pytest.raises(MismatchError, match="twice"):
        start(crew.engines[0], "twice")
    start(crew.engines[1], "twice").wait()
    asked.wait()
    for _ in range(3):
        crew.together(lambda engine: start(engine, "twice").wait())


def test_members_that_give_different_shapes_are_told_and_go_on(make_crew: Callable[..., Crew]) -> None:
    crew = make_crew(2)

    def ask(engine: Engine) -> str:
        with pytest.raises(MismatchError) as told:
            start(engine, "odd", size=2 + engine.rank).wait()
        return str(told.value)

    first, second = crew.together(ask)
    assert first == second and "shapes" in first and "'allreduce.odd'" in first
    assert crew.together(lambda engine: float(start(engine, "even").wait().memory[0])) == [2.0, 2.0]


@pytest.mark.parametrize("limits", [(1.0, 1.0), (1.0, 60.0), (60.0, 1.0)], ids=str)
def test_members_that_wait_for_each_other_for_ever_get_an_error(
    make_crew: Callable[..., Crew], limits: tuple[float, float]
) -> None:
    """All of them, as soon as one's clock says so."""

    def ask(engine: Engine) -> str:
        with pytest.raises(MismatchError) as told:
            start(engine, f"mine.{engine.rank}").wait()
        return str(told.value)

    for told in make_crew(2, limits).together(ask):
        assert "allreduce.mine.0: 1" in told and "allreduce.mine.1: 0" in told


def test_an_abort_ends_what_is_under_way_and_what_is_asked_for_later(make_crew: Callable[..., Crew]) -> None:
    crew = make_crew(2)
    asked = start(crew.engines[0], "alone")
    crew.rings[1].abort("for the test")
    with pytest.raises(HorovodInternalError):
        asked.wait()
    for engine in crew.engines:
        with pytest.raises(HorovodInternalError):
            start(engine, "later").wait()


def test_those_that_have_joined_give_zeros_and_hear_who_was_last(make_crew: Callable[..., Crew]) -> None:
    def ask(engine: Engine) -> tuple[list[float], list[int], int]:
        sums = [float(start(engine, f"step.{step}").wait().memory[0]) for step in range(engine.rank + 1)]
        gathered: list[int] = []
        if engine.rank == 2:
            own = np.arange(2)
            gathered = collectives.start(engine, "allgather", own, (2,), "rows").wait().elements.tolist()
        return sums, gathered, collectives.join(engine)

    assert make_crew(3).together(ask) == [([3.0], [], 2), ([3.0, 2.0], [], 2), ([3.0, 2.0, 1.0], [0, 1], 2)]


def test_a_world_of_one_needs_no_thread() -> None:
    ring = TcpRing("one", 0, 1)
    engine = Engine(ring, 0, 1)
    assert start(engine, "alone").is_over
    assert collectives.join(engine) == 0
    assert collectives.gather_bytes(engine, b"mine") == [b"mine"]
    assert collectives.broadcast_bytes(engine, b"mine", 0) == b"mine"
    with pytest.raises(ValueError, match="root_rank is 1"):
        collectives.broadcast_bytes(engine, b"", 1)
