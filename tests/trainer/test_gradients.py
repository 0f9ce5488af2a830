"""Sums of a step's gradients, dense, sliced or absent, over real rings of our own sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from elastic_launch.errors import RingError, UsageError
from elastic_launch.trainer.ring.gradients import Kind, agreed, sum_gradients
from elastic_launch.trainer.ring.slices import Slices, is_dense_cheaper
from elastic_launch.trainer.ring.tcp.ring import TcpRing

from .tcp_threads import in_threads, rings

__all__ = ["rings"]
ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
Rings: TypeAlias = Callable[[int], list[TcpRing]]
HEIGHT, WIDTH = 50, 4  # of a table


def slices(rows: list[int], dtype: Any = np.float32, fill: float | None = None) -> Slices:
    values = np.random.default_rng(rows).integers(-4, 5, (len(rows), WIDTH)).astype(dtype)
    if fill is not None:
        values[...] = fill
    return Slices(values, np.array(rows, np.int32))


def table_of(gradient: Slices | None) -> Any:
    table = np.zeros((HEIGHT, WIDTH))
    if gradient is not None:
        np.add.at(table, gradient.indices, gradient.values.astype(np.float64))
    return table


def summed(rings: Rings, by_rank: list[list[Any]], weights: list[float] | None = None) -> list[Any]:
    """What each gets is the same, and is what rank 0 gets."""
    weights = weights or [1.0] * len(by_rank)
    found = in_threads(lambda ring: sum_gradients(ring, by_rank[ring.rank], weights[ring.rank]), rings(len(by_rank)))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert type(one) is type(same)
            if isinstance(one, Slices):
                np.testing.assert_array_equal(one.indices, same.indices)
                one, same = one.values, same.values
            np.testing.assert_array_equal(one, same)
    return found[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_slices_become_slices_with_the_same_sum_and_no_other_rows(rings: Rings, count: int, dtype: Any) -> None:
    mostly_same, mostly_different, with_repeats = (
        [slices(rows[rank], dtype) for rank in range(count)]
        for rows in (
            [[1, 5, 7, 8], [1, 5, 8], [7, 5, 1]],
            [[40, 2], [3, 41, 7, 9], [2]],
            [[4, 4, 30, 4, 9], [9, 9, 9], [4, 30, 30, 4]],
        )
    )
    nobodys = [slices([], dtype) for _ in range(count)]
    tables = [mostly_same, mostly_different, with_repeats, nobodys]
    found = summed(rings, [[table[rank] for table in tables] for rank in range(count)])
    for result, table in zip(found, tables, strict=True):
        assert result.values.dtype == dtype and result.values.shape == (len(result.indices), WIDTH)
        np.testing.assert_array_equal(table_of(result), sum(table_of(each) for each in table))
        assert {*result.indices.tolist()} == {row for each in table for row in each.indices.tolist()}


def test_who_has_no_gradient_or_no_rows_takes_part_all_the_same(rings: Rings) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    by_rank = [
        [None, slices([3, 1]), None, slices([2]), None],
        [array, None, None, slices([]), array],
        [array, slices([1]), None, None, None],
    ]
    dense, table, nothing, lone, half = summed(rings, by_rank)
    np.testing.assert_array_equal(dense, 2 * array)
    np.testing.assert_array_equal(table_of(table), table_of(slices([3, 1])) + table_of(slices([1])))
    assert nothing is None
    np.testing.assert_array_equal(table_of(lone), table_of(slices([2])))
    np.testing.assert_array_equal(half, array)


def test_what_is_an_array_at_one_member_is_one_for_all(rings: Rings) -> None:
    array = np.ones((HEIGHT, WIDTH), np.float32)
    (found,) = summed(rings, [[slices([3, 3, 9])], [array], [None]], [0.5, 2.0, 1.0])
    np.testing.assert_array_equal(found, 0.5 * table_of(slices([3, 3, 9])) + 2.0)


@pytest.mark.parametrize("rows", [[1, 2, 3], [11, 12, 13]])
def test_slices_count_with_their_weights_and_those_of_weight_0_touch_no_row(rings: Rings, rows: list[int]) -> None:
    bad = slices([7, 8], fill=np.nan)
    given = [slices([1, 2, 3, 2]), bad, slices(rows)]
    (found, dense) = summed(rings, [[each, each.values[0]] for each in given], [0.25, 0.0, 0.75])
    np.testing.assert_array_equal(table_of(found), 0.25 * table_of(given[0]) + 0.75 * table_of(given[2]))
    assert not {7, 8} & {*found.indices.tolist()}
    assert np.isfinite(dense).all()


def test_a_ring_of_one_gives_what_it_was_given(rings: Rings) -> None:
    (ring,) = rings(1)
    array, table = np.ones(3, np.float32), slices([1, 1])
    same = sum_gradients(ring, [array, table, None])
    assert same[0] is array and same[1] is table and same[2] is None
    halves = sum_gradients(ring, [array, table, None], 0.5)
    assert halves[0].tolist() == [0.5] * 3 and halves[2] is None
    np.testing.assert_array_equal(table_of(halves[1]), table_of(table) / 2)


def test_members_that_are_sure_to_be_alike_do_not_ask(rings: Rings) -> None:
    class Deaf:
        def __init__(self, ring: TcpRing) -> None:
            self.world_size, self.start_allreduce = ring.world_size, ring.start_allreduce

    arrays = [np.ones(3, np.float32), np.ones((2, 2), np.float64)]
    found = in_threads(lambda ring: sum_gradients(Deaf(ring), arrays, all_alike=True), rings(2))  # type: ignore[arg-type]
    assert [each.tolist() for each in found[1]] == [[2.0] * 3, [[2.0, 2.0]] * 2]


def test_gradients_that_do_not_fit_are_named() -> None:
    array, rows = Kind(True, "float32", (5, 4)), Kind(False, "float32", (4,))
    assert agreed([[None, rows], [array, array], [rows, None]]) == [array, array]
    with pytest.raises(
        UsageError, match=r"gradient 1 is an array of float32 \[5, 4\] at rank 0, but .* \[3\] at rank 2"
    ):
        agreed([[None, array], [None, None], [None, Kind(True, "float32", (3,))]])
    with pytest.raises(
        UsageError, match=r"an array of float32 \[5, 4\] at rank 1, but rows of float32 \[3\] at rank 0"
    ):
        agreed([[Kind(False, "float32", (3,))], [array]])
    with pytest.raises(UsageError, match="rows of float64"):
        agreed([[rows], [Kind(False, "float64", (4,))]])
    with pytest.raises(UsageError, match="rank 0 1, rank 1 2"):
        agreed([[rows], [rows, rows]])


def test_rows_beyond_the_table_are_refused(rings: Rings) -> None:
    def call(ring: TcpRing) -> None:
        if ring.rank == 1:
            with pytest.raises(UsageError, match="rows 3 to 50 are not all in a table of 50 rows"):
                sum_gradients(ring, [slices([3, 50])])
            ring.abort("it has failed")
        else:
            with pytest.raises(RingError):
                sum_gradients(ring, [np.ones((HEIGHT, WIDTH), np.float32)])

    in_threads(call, rings(2))


def test_rows_are_reduced_where_that_costs_less() -> None:
    assert is_dense_cheaper(given=21, different=10, dtype="float32")
    assert not is_dense_cheaper(given=20, different=10, dtype="float32")
    assert not is_dense_cheaper(given=30, different=10, dtype="bfloat16")
    assert not is_dense_cheaper(given=0, different=0, dtype="float32")
