"""Sums of lists of arrays, fused into buckets, over real rings of our own sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from elastic_launch.errors import RingError, UsageError
from elastic_launch.trainer.ring.fusing import FusedSum, sum_arrays
from elastic_launch.trainer.ring.tcp.buffers import ALIGNMENT, Bfloat16
from elastic_launch.trainer.ring.tcp.ring import TcpRing

from .tcp_threads import in_threads, rings

__all__ = ["rings"]
ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
Rings: TypeAlias = Callable[[int], list[TcpRing]]
Array: TypeAlias = Any


class Counting:
    """A ring that notes what is asked of it."""

    def __init__(self, ring: TcpRing) -> None:
        self.ring = ring
        self.world_size = ring.world_size
        self.sizes: list[int] = []

    def start_allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> Any:
        self.sizes.append(array.nbytes)
        return self.ring.start_allreduce(array, operation, out)


class Watched(Counting):
    """A ring that says when its first sum is over."""

    def __init__(self, ring: TcpRing, first_is_over: threading.Event) -> None:
        super().__init__(ring)
        self.first_is_over = first_is_over

    def start_allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> Any:
        work = super().start_allreduce(array, operation, out)
        work.when_done(lambda _: self.first_is_over.set())
        return work


def given(rank: int) -> list[Array]:
    """Whole numbers of many types, shapes and sizes; some are larger than a bucket of 4096 bytes."""
    source = np.random.default_rng(rank)
    shapes: list[tuple[int, ...]] = [(3, 5), (), (0, 4), (700,), (1,), (3000,), (20, 20), (2, 0)]
    types = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "float32"]
    return [source.integers(-4, 5, shape).astype(each) for shape in shapes for each in types]


def total_of(count: int) -> list[Array]:
    by_rank = [given(rank) for rank in range(count)]
    exact = [sum(each.astype(np.float64) for each in arrays) for arrays in zip(*by_rank, strict=True)]
    return [np.asarray(total).astype(array.dtype) for total, array in zip(exact, by_rank[0], strict=True)]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_sums_are_numpys_in_order_shape_and_type(rings: Rings, count: int, in_place: bool) -> None:
    def call(ring: TcpRing) -> None:
        for bucket in (1, 4096, 25 << 20):
            arrays = given(ring.rank)
            sums = sum_arrays(ring, arrays, out=arrays if in_place else None, bucket=bucket)
            for one, other in zip(sums, total_of(count), strict=True):
                assert one.dtype == other.dtype and one.shape == other.shape
                np.testing.assert_array_equal(one, other)
                assert in_place or one.ctypes.data % ALIGNMENT == 0 or not one.size
            for array, result, before in zip(arrays, sums, given(ring.rank), strict=True):
                assert (array is result) == in_place
                assert in_place or np.array_equal(array, before)

    in_threads(call, rings(count))


def test_small_arrays_share_a_bucket_and_large_ones_go_as_they_are(rings: Rings) -> None:
    def call(ring: TcpRing) -> list[int]:
        counting = Counting(ring)
        small, large = np.ones(100, np.float32), np.ones(3000, np.float32)
        sum_arrays(counting, [small] * 5 + [large] + [small] * 5, bucket=4096)
        return counting.sizes

    # Ten arrays of 400 bytes take 448 each, since each starts where TensorFlow can take it over.
    assert in_threads(call, rings(2)) == [[12000, 4480]] * 2


def test_a_bucket_is_sent_while_the_next_one_is_packed(rings: Rings) -> None:
    def call(ring: TcpRing) -> list[float]:
        def arrays() -> Any:
            for index in range(10):
                if index == 6 and ring.rank == 0:  # five fill a bucket
                    assert first_is_over.wait(10), "a full bucket was not sent before all was packed"
                yield np.full(250, index, np.float32)

        fused = FusedSum(Watched(ring, first_is_over), bucket=4096)
        for array in arrays():
            fused.add(array)
        return [float(each[0]) for each in fused.finish()]

    first_is_over = threading.Event()
    assert in_threads(call, rings(2)) == [[2.0 * index for index in range(10)]] * 2


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_each_member_counts_with_its_weight_and_one_of_weight_0_not_at_all(
    rings: Rings, dtype: str, in_place: bool
) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    lists = [
        [np.random.default_rng(rank).standard_normal(size).astype(kind) for size in (7, 2000)] for rank in range(3)
    ]
    exact = [
        0.25 * one.astype(np.float64) + 0.75 * other.astype(np.float64) for one, _, other in zip(*lists, strict=True)
    ]
    for array in lists[1]:
        array[...] = np.nan

    def call(ring: TcpRing) -> list[Any]:
        arrays = lists[ring.rank]
        return sum_arrays(ring, arrays, [0.25, 0.0, 0.75][ring.rank], arrays if in_place else None, bucket=4096)

    close = 4 * float(ml_dtypes.finfo(kind).eps)
    found = in_threads(call, rings(3))
    for sums in found:
        for one, wanted, same in zip(sums, exact, found[0], strict=True):
            np.testing.assert_allclose(one.astype(np.float64), wanted, rtol=close, atol=close)
            np.testing.assert_array_equal(one, same)


def test_a_weight_of_1_in_16_bits_is_rounded_once(rings: Rings) -> None:
    """256 + 1 + 1 + 1 is 260 in bfloat16 when it is added up exactly, and 256 when it is rounded in between."""
    values = [256.0, 1.0, 1.0, 1.0]
    found = in_threads(lambda ring: sum_arrays(ring, [np.full(5, values[ring.rank], ml_dtypes.bfloat16)])[0], rings(4))
    assert found[0].astype(np.float32).tolist() == [260.0] * 5


def test_bits_that_are_said_to_be_bfloat16_stay_so(rings: Rings) -> None:
    one = np.full((2, 2), 0x3F80, np.uint16).view(Bfloat16)  # 1.0
    found = in_threads(lambda ring: sum_arrays(ring, [one], 0.5)[0], rings(2))
    assert isinstance(found[0], Bfloat16) and found[0].tolist() == one.tolist()


def test_what_cannot_be_is_refused(rings: Rings) -> None:
    (ring,) = rings(1)
    with pytest.raises(UsageError, match=r"0.5 times int32 is no int32"):
        sum_arrays(ring, [np.ones(3, np.int32)], 0.5)
    with pytest.raises(UsageError, match="do not fit"):
        sum_arrays(ring, [np.ones(3)], out=[np.ones(4)])
    assert sum_arrays(ring, []) == []


def test_when_the_ring_breaks_no_memory_of_the_caller_is_written_later(rings: Rings) -> None:
    members = rings(2)

    def call(ring: TcpRing) -> str:
        if ring.rank == 1:
            ring.barrier()
            ring.abort("the test said so")
            return ""
        ring.barrier()
        arrays = [np.ones(2_000_000, np.float32) for _ in range(8)]
        with pytest.raises(RingError) as raised:
            sum_arrays(ring, arrays, out=arrays)
        after = [each.copy() for each in arrays]
        ring.close()
        for one, other in zip(arrays, after, strict=True):
            np.testing.assert_array_equal(one, other)
        return str(raised.value)

    assert "rank 1" in in_threads(call, members)[0]
