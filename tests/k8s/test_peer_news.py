"""What a server is told of pods that others have created, without a cluster."""

from __future__ import annotations

import pytest

from elastic_launch.k8s.peer_news import Drained, Gone, Worker, news
from elastic_launch.k8s.pods import Pod

NOW = 1000.0


def pod(name: str, state: str = "running", **options: float | str) -> Pod:
    return Pod(name, f"uid-{name}", state, **options)  # type: ignore[arg-type]


def worker(name: str, stays: bool = True, knows_its_pod: bool = True) -> Worker:
    return Worker(f"agent-{name}", name, f"uid-{name}" if knows_its_pod else "", stays)


@pytest.mark.parametrize("knows", [True, False], ids=["its-id", "its-name"])
def test_a_pod_that_is_being_deleted_is_drained_once(knows: bool) -> None:
    pods = [pod("a"), pod("b", leaving_until=NOW + 30)]
    both = [worker("a", knows_its_pod=knows), worker("b", knows_its_pod=knows)]
    assert news(pods, {}, frozenset(), both, NOW) == [Drained("uid-b", "b", "uid-b" if knows else "b")]
    assert news(pods, {}, frozenset(), [both[0], worker("b", stays=False)], NOW) == []
    assert news(pods, {}, frozenset(), [], NOW) == [], "nobody there to be drained"


@pytest.mark.parametrize("state", ["failed", "succeeded", "unknown"])
def test_a_pod_that_has_ended_is_gone(state: str) -> None:
    pods = [pod("a"), pod("b", state, trouble="Evicted: the node was low on memory")]
    (told,) = news(pods, {}, frozenset(), [worker("a"), worker("b")], NOW)
    assert isinstance(told, Gone) and told.agent == "agent-b" and "Evicted" in told.reason
    assert news(pods, {}, frozenset({"uid-b"}), [worker("a"), worker("b")], NOW) == []


def test_a_pod_that_is_not_there_any_more_is_gone_with_each_of_its_agents() -> None:
    workers = [worker("a"), worker("b"), worker("b"), Worker("second", "b", "uid-b", True)]
    told = news([pod("a")], {"uid-b": "b"}, frozenset(), workers, NOW)
    assert [item.agent for item in told if isinstance(item, Gone)] == ["agent-b", "second"]


def test_a_pod_long_past_its_grace_period_is_gone() -> None:
    silent = pod("b", leaving_until=NOW - 60)
    assert [type(item) for item in news([silent], {}, frozenset(), [worker("b", stays=False)], NOW)] == [Gone]


def test_a_pod_of_the_same_name_is_not_taken_for_the_one_before() -> None:
    """As of a StatefulSet, and the agent was not told which pod it is in."""
    workers = [worker("b", knows_its_pod=False)]
    assert news([pod("b")], {"uid-old": "b"}, frozenset(), workers, NOW) == []
    old = Pod("b", "uid-old", "failed", created=1.0)
    assert news([pod("b", created=2.0), old], {}, frozenset(), workers, NOW) == []


def test_pods_and_workers_of_others_are_left_alone() -> None:
    strangers = [Worker("x", "other", "uid-other", True), Worker("y", "elsewhere", "", True)]
    pods = [pod("web", "failed"), pod("db", leaving_until=NOW + 5)]
    assert news(pods, {"uid-c": "c"}, frozenset(), strangers, NOW) == []
