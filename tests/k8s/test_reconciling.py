"""What a controller does in each situation: the situation alone decides."""

from __future__ import annotations

from dataclasses import replace

from elastic_launch.k8s.pods import Pod
from elastic_launch.k8s.reconciling import (
    Action,
    Create,
    Delete,
    Fail,
    Resize,
    Served,
    TellDrain,
    TellGone,
    Wanted,
    reconcile,
)

NOW = 1000.0
WANTED = Wanted("digits", min=1, max=3)
SERVED = Served(min=1, max=3)


def pod(number: int, state: str = "running", **fields: object) -> Pod:
    known = Pod(f"digits-worker-{number}", f"uid-{number}", state, created=float(number))
    return replace(known, **fields)  # type: ignore[arg-type]


def actions(pods: list[Pod], wanted: Wanted = WANTED, served: Served = SERVED, **others: object) -> list[Action]:
    arguments: dict[str, object] = {"vanished": {}, "told": frozenset(), "now": NOW, **others}
    return reconcile(wanted, pods, served=served, **arguments)  # type: ignore[arg-type]


def test_all_pods_that_are_wanted_are_made_at_once() -> None:
    assert actions([]) == [Create(0), Create(1), Create(2)]


def test_nothing_is_to_be_done_when_everything_is_there() -> None:
    assert actions([pod(0), pod(1, "pending"), pod(2)]) == []


def test_a_pod_that_is_being_deleted_is_drained_and_replaced_under_another_name() -> None:
    served = replace(SERVED, staying=frozenset({"uid-0", "uid-1", "uid-2"}))
    leaving = pod(1, leaving_until=NOW + 30)
    assert actions([pod(0), leaving, pod(2)], served=served) == [TellDrain("uid-1", leaving.name), Create(3)]


def test_a_leaving_pod_is_told_of_once_the_server_knows_it() -> None:
    assert actions([pod(0), pod(1, leaving_until=NOW + 30), pod(2)]) == [Create(3)]


def test_a_deleted_pod_is_gone_and_its_name_is_free() -> None:
    found = actions([pod(0), pod(2)], vanished={"uid-1": "digits-worker-1"})
    assert found == [TellGone("uid-1", "digits-worker-1", "pod digits-worker-1 was deleted"), Create(1)]


def test_the_server_is_told_only_once() -> None:
    assert actions([pod(0), pod(1), pod(2)], vanished={"uid-9": "digits-worker-9"}, told=frozenset({"uid-9"})) == []


def test_an_evicted_pod_is_lost_and_replaced_and_costs_nothing() -> None:
    evicted = pod(1, "failed", trouble="Evicted: the node was low on memory", by_force=True, ended=NOW)
    wanted = replace(WANTED, backoff_limit=0)
    found = actions([pod(0), evicted, pod(2)], wanted)
    assert found == [
        TellGone("uid-1", evicted.name, f"pod {evicted.name} has ended: Evicted: the node was low on memory"),
        Create(3),
    ]


def test_a_drained_pod_that_exited_0_is_replaced() -> None:
    found = actions([pod(0), pod(1, "succeeded", exit_code=0), pod(2)])
    assert found[1:] == [Create(3)] and isinstance(found[0], TellGone)


def test_a_pod_on_a_silent_node_is_lost_when_its_grace_period_is_long_over() -> None:
    stuck = pod(1, leaving_until=NOW - 11)
    assert isinstance(actions([pod(0), stuck, pod(2)])[0], TellGone)
    assert actions([pod(0), replace(stuck, leaving_until=NOW - 5), pod(2)]) == [Create(3)]
    assert isinstance(actions([pod(0), pod(1, "unknown"), pod(2)])[0], TellGone)


def test_scaling_down_drains_first_whoever_is_missed_least_then_resizes_then_deletes() -> None:
    ranks: dict[str, tuple[int, ...]] = {"uid-0": (1,), "uid-1": (0,), "uid-2": ()}
    served = Served(1, 4, ranks, frozenset({"uid-0", "uid-1", "uid-2"}))
    pods = [pod(0), pod(1), pod(2), pod(3, "pending")]
    found = actions(pods, replace(WANTED, max=1), served)
    assert found[:3] == [TellDrain("uid-2", pods[2].name), TellDrain("uid-0", pods[0].name), Resize(1, 1)]
    assert [action.pod.name for action in found[3:] if isinstance(action, Delete)] == [
        "digits-worker-3",
        "digits-worker-2",
        "digits-worker-0",
    ]


def test_sizes_are_told_in_workers() -> None:
    assert actions([pod(0)], replace(WANTED, max=1, nproc=4)) == [Resize(4, 4)]


def test_crashes_and_failed_pods_are_counted_together() -> None:
    failed = pod(1, "failed", exit_code=3, trouble="exit code 3", ended=NOW - 100)
    wanted = replace(WANTED, backoff_limit=2)
    assert actions([pod(0), failed, pod(2)], wanted, replace(SERVED, crashes=1))[1:] == [Create(3)]
    last = actions([pod(0), failed, pod(2)], wanted, replace(SERVED, crashes=2))[-1]
    assert isinstance(last, Fail) and last.code == 3 and "BackoffLimitExceeded" in last.reason


def test_pods_that_fail_in_a_row_are_replaced_more_and_more_slowly() -> None:
    failed = [pod(number, "failed", exit_code=1, ended=NOW - 3) for number in range(3)]
    told = frozenset({"uid-0", "uid-1", "uid-2"})
    wanted = replace(WANTED, max=1, backoff_limit=9)
    served = replace(SERVED, max=1)
    assert actions(failed, wanted, served, told=told) == [Create(3)]
    failed.append(pod(3, "failed", exit_code=1, ended=NOW - 3))
    assert actions(failed, wanted, served, told=told | {"uid-3"}) == []
    assert actions(failed, wanted, served, told=told | {"uid-3"}, now=NOW + 1) == [Create(4)]


def test_nothing_is_made_for_a_job_that_is_being_deleted() -> None:
    served = replace(SERVED, staying=frozenset({"uid-1"}))
    gone = replace(WANTED, exists=False)
    leaving = pod(1, leaving_until=NOW + 30)
    assert actions([leaving], gone, served) == [TellDrain("uid-1", leaving.name)]


def test_only_the_newest_pods_that_left_are_kept() -> None:
    ended = [pod(number, "succeeded", exit_code=0, ended=float(number)) for number in range(3, 15)]
    told = frozenset(old.uid for old in ended)
    found = actions([pod(0), pod(1), pod(2), *ended], told=told)
    assert [action.pod.name for action in found if isinstance(action, Delete)] == ["digits-worker-3", "digits-worker-4"]
