"""What members compute of their parts adds up to what one computes of the whole, and computing leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras")
import numpy as np  # noqa: E402

from elastic_launch.trainer.keras.engine import Engine, Share, engine_for  # noqa: E402
from elastic_launch.trainer.keras.roles import replicated  # noqa: E402
from elastic_launch.trainer.keras.sources import cut, spec_of  # noqa: E402

from .models import LABELS, MODELS, X, with_state_and_dropout  # noqa: E402

PARTS = [(0, 7), (7, 9), (9, 9)]  # rows of three members; the third has none


def engine_of(make: Any, batch: Any) -> Engine:
    keras.utils.set_random_seed(1)
    engine = engine_for(make())
    engine.build(spec_of(batch))
    engine.prepare(spec_of(batch))
    return engine


def flat(lists: list[list[Any]]) -> list[Any]:
    return [np.asarray(keras.ops.convert_to_numpy(each)) for values in lists for each in values]


@pytest.mark.parametrize("name", ["two outputs", "auc and weight decay", "embedding", "own train_step"])
def test_the_members_results_add_up_to_those_of_the_whole_batch(name: str) -> None:
    make, x, y = MODELS[name]
    whole = cut((x, y), 0, 9)
    engine = engine_of(make, whole)
    expected = engine.compute(whole, 0)
    packed = []
    for rank, (start, stop) in enumerate(PARTS):
        part = cut(whole, start, stop) if stop > start else broken(cut(whole, 0, 1))
        packed.append(engine.pack(engine.compute(part, rank), Share(rank, (stop - start) / 9)))
    sums = [np.sum(arrays, axis=0) for arrays in zip(*(sums for sums, _ in packed), strict=True)]
    tables = [np.concatenate(arrays) for arrays in zip(*(tables for _, tables in packed), strict=True)]
    found = engine.unpack(sums, tables, expected)
    for a, b in zip(flat(found.lists()), flat(expected.lists()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def broken(batch: Any) -> Any:
    """A sample that gives NaN."""
    return keras.tree.map_structure(lambda v: v * np.float32("nan") if v.dtype == np.float32 else v, batch)


def test_computing_changes_no_variable_and_each_rank_draws_at_random_by_itself() -> None:
    batch = (X[:9], LABELS[:9])
    engine = engine_of(with_state_and_dropout, batch)
    before = {name: np.array(variable) for name, variable in replicated(engine.model).items()}
    first = [flat(engine.compute(batch, rank).lists()) for rank in range(3)]
    again = [flat(engine.compute(batch, rank).lists()) for rank in range(3)]
    for name, variable in replicated(engine.model).items():
        np.testing.assert_array_equal(np.array(variable), before[name], err_msg=name)
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)), "the same seed, step and rank"
    gradients = [next(array for array in results if array.shape == (8, 3)) for results in first]
    assert len({each.tobytes() for each in gradients}) == 3, "each rank drops other inputs"
    local = [[array for array in results if array.shape == (2,)] for results in first]
    assert all(np.array_equal(a, b) for a, b in zip(local[0], local[2], strict=True)), "states of seeds move alike"
