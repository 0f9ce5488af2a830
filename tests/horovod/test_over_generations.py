"""What Horovod's faces keep of one generation, and must not take into the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launch.errors import RingError
from elastic_launch.horovod import world
from elastic_launch.horovod.common.exceptions import HorovodInternalError
from elastic_launch.horovod.world import NoState, World
from elastic_launch.trainer.exchange import Report, decide


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """This process's place, with a generation that a test may change."""
    found = SimpleNamespace(generation=1)
    monkeypatch.setattr(world, "current", lambda: found)
    return found


def test_a_half_done_accumulation_is_not_taken_into_the_next_generation(here: SimpleNamespace) -> None:
    tf = pytest.importorskip("tensorflow")
    from elastic_launch.horovod.tensorflow.gradients import Accumulator

    accumulator = Accumulator(2, average=False)

    def add(value: float) -> tuple[bool, list[float]]:
        is_time, sums = accumulator.add([tf.constant(value)])
        return bool(is_time), [float(each) for each in sums]

    assert [add(1.0)[0], add(2.0)] == [False, (True, [3.0])]
    assert not add(4.0)[0]
    here.generation = 2
    assert not add(8.0)[0], "whoever joins has counted none, and is not there yet"
    assert add(16.0) == (True, [24.0])


def test_variables_are_broadcast_once_in_each_generation(
    here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("keras")
    from elastic_launch.horovod._keras import callbacks

    roots: list[int] = []
    monkeypatch.setattr(callbacks, "broadcast_variables", lambda variables, root: roots.append(root))
    callback: Any = callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(SimpleNamespace(weights=[], optimizer=SimpleNamespace(variables=[])))
    assert not callback.broadcast_done
    for batch in range(3):
        callback.on_train_batch_end(batch)
    assert len(roots) == 1 and callback.broadcast_done
    here.generation = 2
    callback.on_train_batch_end(3)
    assert len(roots) == 2


@pytest.mark.parametrize(
    ("lineages", "came_later"),
    [((0, 0), [False, False]), ((1, 0), [False, True]), ((1, 2), [True, False]), ((2, 2), [False, False])],
)
def test_who_was_missing_in_a_generation_came_later(lineages: tuple[int, ...], came_later: list[bool]) -> None:
    decision = decide([Report(f"worker {rank}", lineage) for rank, lineage in enumerate(lineages)])
    states = [NoState(starts_again=False) for _ in lineages]
    for rank, state in enumerate(states):
        state.bring_together(SimpleNamespace(rank=rank), decision, "", "")
    assert [state.came_later for state in states] == came_later


def test_once_later_always_later() -> None:
    state = NoState(starts_again=False)
    for lineage in (1, 2):
        others = decide([Report("mine", lineage if lineage == 2 else 0), Report("other", lineage)])
        state.bring_together(SimpleNamespace(rank=0), others, "", "")
    assert state.came_later


def test_a_ring_that_ends_while_its_only_member_waits_for_its_lease_is_one_that_elastic_run_goes_on_from() -> None:
    def wait_for_lease(ring: Any) -> None:
        raise RingError("another generation has been announced")

    member = SimpleNamespace(ring=object(), wait_for_lease=wait_for_lease)
    with pytest.raises(HorovodInternalError, match="another generation"):
        World.wait_for_lease(SimpleNamespace(_member=member))  # type: ignore[arg-type]
