"""The watch against a server that answers with everything that real ones have been seen to answer with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client

from elastic_launch.k8s import watching
from elastic_launch.k8s.errors import Expired, Unreachable
from elastic_launch.k8s.watching import Cache, Source, Watcher, WatchLimits

from .api_double import Answer, ApiDouble, Json, Request, pod

LIMITS = WatchLimits(connect=1.0, answer=1.0, server=1, silence=0.6)


def event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


def names(watcher: Watcher) -> list[str]:
    return sorted(item["metadata"]["name"] for item in watcher.objects())


@contextmanager
def watching_double(*answers: Answer, limits: WatchLimits = LIMITS) -> Iterator[tuple[ApiDouble, Watcher]]:
    double = ApiDouble(*answers)
    settings = client.Configuration()
    settings.host = double.url
    settings.retries = False
    core = client.CoreV1Api(client.ApiClient(settings))
    watcher = Watcher("test", Source(core.list_namespaced_pod, "n", {"label_selector": "a=b"}, limits), lambda: None)
    try:
        yield double, watcher
    finally:
        watcher.stop()
        double.close()


def lists(version: int, *pods: Json) -> Answer:
    return lambda request: request.list(version, *pods)


def streams(*events: Json | bytes, **options: Any) -> Answer:
    return lambda request: request.stream(*events, **options)


def fails(status: int) -> Answer:
    return lambda request: request.error(status)


def test_a_watch_begins_at_the_version_of_the_list_and_goes_on_where_it_was() -> None:
    bookmark = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "40"}})
    with watching_double(
        lists(10, pod("a", 5)),
        streams(event("ADDED", pod("b", 11)), event("DELETED", pod("a", 12)), bookmark, silence=0.2),
        streams(event("ADDED", pod("c", 41)), silence=0.2),
        fails(410),
    ) as (double, watcher):
        with pytest.raises(Expired):
            watcher.round()
        assert names(watcher) == ["b", "c"]
        first, *watches = double.requests
        assert first.query == {"labelSelector": "a=b"}
        assert [watch.query["resourceVersion"] for watch in watches] == ["10", "40", "41"]
        assert watches[0].query["allowWatchBookmarks"].lower() == "true"
        assert watches[0].query["timeoutSeconds"] == "1"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fails(410), Expired),
        (streams(event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})), Expired),
        (streams(event("ERROR", {"kind": "Status", "code": 500, "message": "etcd"})), Unreachable),
        (fails(500), Unreachable),
        (fails(504), Unreachable),
        (streams(b'{"type": "ADDED", "obj'), Unreachable),
        (streams(b"<html>a proxy</html>\n"), Unreachable),
        (streams(b'"words"\n'), Unreachable),
        (streams(event("ADDED", pod("b", 11)), broken=True), Unreachable),
        (streams(silence=10.0), Unreachable),
    ],
    ids=["410", "error-410", "error-500", "500", "504", "half-a-line", "html", "no-object", "broken", "silent"],
)
def test_whatever_ends_a_watch_badly_ends_the_round(answer: Answer, error: type[Exception]) -> None:
    with watching_double(lists(10), answer) as (_, watcher):
        began = time.monotonic()
        with pytest.raises(error):
            watcher.round()
        assert time.monotonic() - began < 8


def test_a_watch_that_ends_at_once_is_not_repeated_at_once() -> None:
    with watching_double(lists(10), streams(), streams(), streams(), limits=replace(LIMITS, server=60)) as (
        double,
        watcher,
    ):
        watcher.round()
        assert len(double.requests) == 2


def test_a_list_that_is_not_answered_ends_the_round() -> None:
    def silent(request: Request) -> None:
        time.sleep(3)

    with watching_double(silent) as (_, watcher), pytest.raises(Unreachable):
        watcher.round()


def test_round_after_round_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_PAUSE", 0.01)
    with watching_double(
        fails(500),
        lists(10, pod("a", 5), pod("b", 6)),
        streams(event("DELETED", pod("b", 11))),
        fails(504),
        lists(20, pod("c", 15)),
        fails(410),
        lists(30, pod("c", 15), pod("d", 25)),
    ) as (_, watcher):
        watcher.start()
        limit = time.monotonic() + 30
        while names(watcher) != ["c", "d"]:
            assert time.monotonic() < limit, names(watcher)
            time.sleep(0.01)
        assert watcher.listed.is_set()
        assert any(thread.name == "watch-test" and thread.daemon for thread in threading.enumerate())


def test_events_that_come_twice_or_late_change_nothing() -> None:
    cache = Cache()
    cache.replace([pod("a", 5)], "10")
    cache.apply(event("MODIFIED", pod("a", 12, note="newest")))
    cache.apply(event("MODIFIED", pod("a", 11, note="late")))
    cache.apply(event("ADDED", pod("a", 5)))
    assert [item["metadata"].get("note") for item in cache.objects()] == ["newest"] and cache.version == "12"
    cache.apply(event("DELETED", pod("a", 13)))
    cache.apply(event("DELETED", pod("a", 13)))
    cache.apply(event("MODIFIED", pod("a", 12)))
    assert cache.objects() == [] and cache.version == "13"


def test_a_pod_of_the_same_name_is_another_one() -> None:
    cache = Cache()
    cache.replace([pod("a", 5)], "10")
    cache.apply(event("DELETED", pod("a", 11)))
    cache.apply(event("ADDED", pod("a", 12, uid="another")))
    assert [item["metadata"]["uid"] for item in cache.objects()] == ["another"]


def test_a_pod_that_was_just_made_is_not_forgotten_for_a_list_that_is_older() -> None:
    cache = Cache()
    cache.put(pod("made", 12))
    cache.replace([pod("a", 5)], "10")
    assert len(cache.objects()) == 2
    cache.replace([pod("a", 5)], "13")
    assert len(cache.objects()) == 1


def test_what_is_in_the_way_for_long_is_said_once_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "_PAUSE", 0.01)
    caplog.set_level("INFO", logger=watching.__name__)
    broken = [lists(10), *[fails(403)] * 5, *[fails(500)] * 3, lists(20, pod("a", 15)), *[fails(403)] * 5]
    with watching_double(*broken, lists(30, pod("b", 25))) as (_, watcher):
        watcher.start()
        limit = time.monotonic() + 10
        while names(watcher) != ["b"]:
            assert time.monotonic() < limit, caplog.messages
            time.sleep(0.01)
    said = [message for message in caplog.messages if "listing again" in message]
    assert [("403" in text, "right to list" in text) for text in said] == [(True, True), (False, False), (True, True)]
    assert len([message for message in caplog.messages if "answers again" in message]) == 2
