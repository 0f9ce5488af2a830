"""What follows from what the members say of themselves: pure decisions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launch.errors import ElasticError
from elastic_launch.horovod.claims import Claim, source_of
from elastic_launch.horovod.negotiating import JOIN, Ready, Table
from elastic_launch.horovod.performing import batches, rows_of_parts
from elastic_launch.horovod.places import Place, Seat, place
from elastic_launch.horovod.requests import Request


def reduction(name: str, size: int = 4, dtype: str = "float32", operation: str = "sum") -> Request:
    return Request(name, "allreduce", dtype, (size,), operation)


def test_the_newest_state_counts_and_of_equal_ones_the_lowest_rank() -> None:
    assert source_of([Claim(True, 3, False), Claim(True, 4, False), Claim(True, 4, False)]) == 1


def test_a_rank_0_that_has_no_state_yet_does_not_reset_the_job() -> None:
    assert source_of([Claim(False, 0, True), Claim(True, 1, False)]) == 1


def test_at_the_start_rank_0s_state_is_the_jobs() -> None:
    assert source_of([Claim(False, 0, False), Claim(False, 0, False)]) == 0


def test_a_job_whose_state_is_lost_does_not_begin_again() -> None:
    with pytest.raises(ElasticError, match="is gone"):
        source_of([Claim(False, 0, True), Claim(False, 0, True)])


def test_who_has_always_been_there_and_has_no_state_knows_that_nobody_had_one() -> None:
    """Another one died on its way to the first state, and this one's partner is its replacement."""
    assert source_of([Claim(False, 0, False), Claim(False, 0, True)]) == 0


def test_places_on_two_hosts() -> None:
    seats = [Seat("a", 0), Seat("a", 1), Seat("b", 0)]
    assert place(seats, 0) == Place(0, 3, 0, 2, 0, 2, False)
    assert place(seats, 1) == Place(1, 3, 1, 2, 0, 1, False)
    assert place(seats, 2) == Place(2, 3, 0, 1, 1, 2, False)


def test_a_local_rank_stays_when_the_one_below_it_goes() -> None:
    assert place([Seat("a", 1), Seat("b", 0)], 0).local_rank == 1


def test_local_ranks_of_two_agents_on_one_host_differ() -> None:
    seats = [Seat("a", 0), Seat("a", 0)]
    assert [place(seats, rank).local_rank for rank in range(2)] == [0, 1]


def test_rows_are_shared_so_that_the_first_ranks_have_one_more() -> None:
    assert rows_of_parts(7, 3) == [3, 2, 2]
    assert rows_of_parts(1, 3) == [1, 0, 0]


def test_nothing_is_ready_before_all_have_asked() -> None:
    table = Table(2)
    assert table.take([[reduction("a")], [reduction("b")]]) == []
    assert table.awaited() == {"a": [1], "b": [0]}
    assert [each.name for each in table.take([[reduction("b")], [reduction("a")]])] == ["a", "b"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (reduction("a", 5), "shapes"),
        (reduction("a", dtype="float64"), "types"),
        (reduction("a", operation="max"), "reduce"),
        (Request("a", "broadcast", "float32", (4,), root=0), "different collectives"),
    ],
)
def test_requests_that_do_not_fit_are_an_error_for_all(other: Request, words: str) -> None:
    [ready] = Table(2).take([[reduction("a")], [other]])
    assert words in ready.error and "ranks 0 and 1" in ready.error


def test_a_broadcast_to_one_that_has_joined_is_an_error() -> None:
    [ready] = Table(2).take([[Request("b", "broadcast", "float32", (1,), root=0)], [Request(JOIN, JOIN)]])
    assert "rank 1 has joined" in ready.error


def test_all_have_joined_only_when_nothing_is_left() -> None:
    table = Table(2)
    assert table.take([[Request(JOIN, JOIN)], []]) == []
    first, last = table.take([[], [reduction("a"), Request(JOIN, JOIN)]])
    assert (first.name, first.requests) == ("a", [None, reduction("a")])
    assert last.name == JOIN and table.last_joined == 1


def test_reductions_of_one_kind_are_made_as_one_up_to_the_limit() -> None:
    ready = [Ready(name, [reduction(name)]) for name in "abc"]
    ready.insert(1, Ready("x", [reduction("x", operation="max")]))
    ready.insert(2, Ready("y", [Request("y", "allgather", "float32", (4,))]))
    assert [[each.name for each in batch] for batch in batches(ready, 32)] == [["y"], ["a", "b"], ["x"], ["c"]]


def test_import_horovod_gives_this_package_and_says_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import horovod\n"
        "from horovod.common.exceptions import HorovodInternalError\n"
        "import elastic_launch.horovod.common.exceptions as ours\n"
        "assert HorovodInternalError is ours.HorovodInternalError and horovod.__version__ == '0.28.1'\n"
        "assert ours.__spec__.name == 'elastic_launch.horovod.common.exceptions'\n"
        "for name, words in (('spark', 'starts jobs itself'), ('nonsense', 'horovod-api.md')):\n"
        "    try:\n"
        "        __import__('horovod.' + name)\n"
        "    except ImportError as error:\n"
        "        assert words in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
        "assert not {'torch', 'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "elastic_launch.horovod.running", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
