"""torchrun's flags for output mean here what they mean there: its own code is asked what that is."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.launcher.output.routing import Route, Routing, Streams, parse_choice, parse_filters, parse_slots

CHOICES = [None, "0", "1", "2", "3", "0:1", "1:2", "0:3,1:1", "0:0,1:3"]
FILTERS = [None, "0", "1", "0,1"]


def torchruns_own(
    redirects: str | None, tee: str | None, filters: str | None, folder: Path
) -> dict[tuple[int, int], Route]:
    """Where torchrun sends the streams of two workers."""
    api = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    specs = api.DefaultLogsSpecs(
        log_dir=str(folder),
        redirects=api.Std.from_str(redirects or "0"),
        tee=api.Std.from_str(tee or "0"),
        local_ranks_filter={int(part) for part in filters.split(",")} if filters else None,
    )
    to = specs.reify({0: {}, 1: {}})
    routes = {}
    for slot, (stream, direct, teed) in itertools.product(
        (0, 1), ((1, to.stdouts, to.tee_stdouts), (2, to.stderrs, to.tee_stderrs))
    ):
        routes[slot, stream] = Route(
            console=direct[slot] == "" or slot in teed,
            file=direct[slot] not in ("", os.devnull),
            duplicate=slot in teed,
        )
    return routes


@pytest.mark.parametrize("filters", FILTERS)
def test_streams_go_where_torchrun_sends_them(filters: str | None, tmp_path: Path) -> None:
    for redirects, tee in itertools.product(CHOICES, CHOICES):
        if redirects is None and tee is None:
            continue  # files for everything, which torchrun has not
        expected = torchruns_own(redirects, tee, filters, tmp_path)
        routing = Routing(
            parse_choice(redirects) if redirects else None,
            parse_choice(tee) if tee else None,
            parse_slots(filters) if filters else None,
        )
        found = {(slot, stream): routing.route(slot, Streams(stream)) for slot in (0, 1) for stream in (1, 2)}
        assert found == expected, (redirects, tee, filters)


def test_without_a_choice_everything_goes_to_the_console_and_to_files() -> None:
    assert Routing().route(0, Streams.OUT) == Route(console=True, file=True, duplicate=True)
    shown = Routing(slots_shown=frozenset({1}))
    assert shown.route(0, Streams.OUT) == Route(console=False, file=True, duplicate=False)


def test_what_is_no_worker_is_shown() -> None:
    routing = Routing(redirects=Streams.BOTH, slots_shown=frozenset())
    assert routing.route(-1, Streams.ERR).console


@pytest.mark.parametrize("text", ["", "4", "0:4", "0:", "1,2", "0:1,", "x"])
def test_a_choice_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="as in 0:1,1:2"):
        parse_choice(text)


def test_more_workers_than_ten_can_be_chosen() -> None:
    assert parse_choice("11:1") == {11: Streams.OUT}


@pytest.mark.parametrize(
    ("text", "texts"), [("apple,orange", ("apple", "orange")), ("a,,b,c", ("a,b", "c")), ("", ()), (",,", (",",))]
)
def test_filters_are_separated_by_commas(text: str, texts: tuple[str, ...]) -> None:
    assert parse_filters(text) == texts
