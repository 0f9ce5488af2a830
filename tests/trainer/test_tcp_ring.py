"""The ring of our own sockets by itself: what its collectives give, in real processes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_launch.trainer.ring.tcp.buffers import DTYPES

from .tcp_members import Members, ask_all, members
from .tcp_process import Array, TcpProcess, digest, from_bits, numbers, to_bits

__all__ = ["members"]

SIZES = [0, 1, 7, 1000, 100_003]  # on both sides of where the way changes
FLOATS = ["float32", "float64", "float16", "bfloat16"]
JOINS: dict[str, Any] = {
    "sum": np.add, "mean": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def given_by(seed: int, count: int, size: int, dtype: str) -> list[Array]:
    return [numbers(seed, rank, size, dtype) for rank in range(count)]


def joined(arrays: list[Array], dtype: str, operation: str) -> Array:
    """What the members' arrays are together, as numpy has it."""
    if dtype == "bfloat16":
        arrays = [from_bits(array) for array in arrays]
    wide = [array.astype(np.float64) if dtype in FLOATS else array for array in arrays]
    total = wide[0]
    for array in wide[1:]:
        total = JOINS[operation](total, array)
    if operation == "mean":
        total = total / len(arrays)
    if dtype == "bfloat16":
        return nearest_bfloat16(total)
    return total.astype(dtype)


def nearest_bfloat16(values: Array) -> Array:
    """By a look at both neighbours, ties to even."""
    below = to_bits(values.astype(np.float32))
    above = below + np.uint16(1)
    to_below = np.abs(values - from_bits(below).astype(np.float64))
    to_above = np.abs(from_bits(above).astype(np.float64) - values)
    is_even = below % 2 == 0
    return np.where((to_below < to_above) | ((to_below == to_above) & is_even), below, above).astype(np.uint16)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_an_allreduce_gives_what_numpy_gives(members: Members, count: int) -> None:
    ring = members.ring(count)
    for dtype in DTYPES if count < 4 else FLOATS:
        for size in SIZES:
            for operation in ["sum"] + (["mean"] if dtype in FLOATS else []):
                got = ask_all(ring, "allreduce", lambda _: (size, size, dtype, operation))  # noqa: B023
                wanted = joined(given_by(size, count, size, dtype), dtype, operation)
                for result in got:
                    assert result.dtype == wanted.dtype
                    np.testing.assert_array_equal(result, wanted, f"{operation} of {size} {dtype}")


def test_all_operations_on_all_types_that_have_them(members: Members) -> None:
    ring = members.ring(3)
    for dtype in DTYPES:
        for operation in JOINS:
            if (operation == "mean" and dtype not in FLOATS) or (operation[0] == "b" and dtype in FLOATS):
                continue
            for size in (5, 60_001):
                got = ask_all(ring, "allreduce", lambda _: (1, size, dtype, operation))  # noqa: B023
                np.testing.assert_array_equal(got[2], joined(given_by(1, 3, size, dtype), dtype, operation))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_sum_has_the_same_bits_on_every_rank_and_from_run_to_run(members: Members, count: int) -> None:
    found: list[list[list[str]]] = []
    for _ in range(2):
        ring = members.ring(count)
        for _ in range(2):
            run = []
            for dtype in FLOATS:
                run.append(ask_all(ring, "allreduce", lambda _: (-1, 300_007, dtype, "sum", False)))  # noqa: B023
                run.append(ask_all(ring, "allreduce", lambda _: (-2, 300, dtype, "mean", False)))  # noqa: B023
            found.append(run)
    assert all(len(set(digests)) == 1 for digests in found[0])
    assert found == [found[0]] * 4


def test_a_large_array_is_summed_piece_by_piece(members: Members) -> None:
    ring = members.ring(3)
    size = 5_000_001
    got = ask_all(ring, "allreduce", lambda _: (3, size, "float32", "sum", False))
    total = joined(given_by(3, 3, size, "float32"), "float32", "sum")
    assert len(set(got)) == 1
    assert got[0] == digest(total)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_small_numbers_of_16_bits_are_not_lost_in_a_sum(members: Members, dtype: str) -> None:
    """Each of them rounds away beside 256 when it is added in 16 bits (bfloat16), or their sum's last bits do (float16)."""
    ring = members.ring(8)
    for size in (100, 200_000):
        got = ask_all(ring, "allreduce", lambda _: (-5, size, dtype, "sum"))  # noqa: B023
        wide = [from_bits(array) if dtype == "bfloat16" else array for array in given_by(-5, 8, size, dtype)]
        exact = np.sum([array.astype(np.float64) for array in wide], axis=0)
        result = from_bits(got[0]) if dtype == "bfloat16" else got[0].astype(np.float64)
        precision = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
        assert np.all(np.abs(result - exact) <= precision * np.abs(exact) + 1e-5)


def test_a_result_may_go_elsewhere_and_the_source_stays_as_it_is(members: Members) -> None:
    ring = members.ring(3)
    for dtype in ("float32", "float16", "int64"):
        for size in (10, 100_001):
            for result, kept in ask_all(ring, "into_another", lambda _: (2, size, dtype, "sum")):  # noqa: B023
                assert kept
                np.testing.assert_array_equal(result, joined(given_by(2, 3, size, dtype), dtype, "sum"))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_reduce_scatter_gives_each_member_its_part(members: Members, count: int) -> None:
    ring = members.ring(count)
    even, uneven = [5] * count, [1000 * rank * rank for rank in range(count)]
    for dtype in ("float32", "bfloat16", "float16", "int32"):
        for counts in (even, uneven, [200_000] * count):
            got = ask_all(ring, "reduce_scatter", lambda _: (4, counts, dtype, "sum"))  # noqa: B023
            total = joined(given_by(4, count, sum(counts), dtype), dtype, "sum")
            parts = np.split(total, np.cumsum(counts)[:-1])
            for (result, kept), part in zip(got, parts, strict=True):
                assert kept
                np.testing.assert_array_equal(result, part)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_an_allgather_gives_everybody_everything_also_of_uneven_sizes(members: Members, count: int) -> None:
    ring = members.ring(count)
    for dtype in ("float32", "bool"):
        for counts in ([3] * count, [rank * 70_001 for rank in range(count)], [200_000] * count):
            for into in ("fresh", "rooms") + (("whole",) if len(set(counts)) == 1 else ()):
                for got in ask_all(ring, "allgather", lambda _: (6, counts, dtype, into)):  # noqa: B023
                    for rank, part in enumerate(got):
                        np.testing.assert_array_equal(part, numbers(6, rank, counts[rank], dtype))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_a_broadcast_comes_from_any_rank(members: Members, count: int) -> None:
    ring = members.ring(count)
    for root in range(count):
        for size in (0, 1, 900, 250_000):
            for got in ask_all(ring, "broadcast", lambda _: (7, size, "float64", root)):  # noqa: B023
                np.testing.assert_array_equal(got, numbers(7, root, size, "float64"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_bytes_and_small_objects_go_round(members: Members, count: int) -> None:
    ring = members.ring(count)
    texts = [b"x" * (rank * 1000) for rank in range(count)]
    assert ask_all(ring, "gather_bytes", lambda rank: (texts[rank],)) == [texts] * count
    root = count - 1
    assert ask_all(ring, "broadcast_bytes", lambda rank: (texts[rank], root)) == [texts[root]] * count
    values = [{"rank": rank, "names": ["a"] * rank, "none": None, "raw": b"\0"} for rank in range(count)]
    assert ask_all(ring, "gather_objects", lambda rank: (values[rank],)) == [values] * count
    assert ask_all(ring, "broadcast_object", lambda rank: (values[rank], 0)) == [values[0]] * count


@pytest.fixture
def ring_of_3(members: Members) -> list[TcpProcess]:
    """One ring for all examples."""
    return members.ring(3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31),
    size=st.one_of(st.integers(0, 40), st.integers(0, 50_000)),
    dtype=st.sampled_from(DTYPES),
    operation=st.sampled_from(["sum", "min", "max"]),
)
def test_any_allreduce_equals_numpys(
    ring_of_3: list[TcpProcess], seed: int, size: int, dtype: str, operation: str
) -> None:
    started = time.monotonic()
    got = ask_all(ring_of_3, "allreduce", lambda _: (seed, size, dtype, operation))
    wanted = joined(given_by(seed, 3, size, dtype), dtype, operation)
    for result in got:
        np.testing.assert_array_equal(result, wanted)
    assert time.monotonic() - started < 30
