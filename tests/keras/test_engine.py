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


class Skipping(keras.layers.Layer):  # type: ignore[misc]
    """Of its three equal blocks it uses the last one never, and the others as it is told, as stochastic depth does by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(4) for _ in range(3)]
        self.used = [True, True]

    def build(self, shape: Any) -> None:
        for block in self.blocks:
            block.build(shape)

    def call(self, x: Any) -> Any:
        for block, is_used in zip(self.blocks, self.used, strict=False):
            x = x + block(x) if is_used else x
        return x


def test_members_that_skip_different_blocks_sum_each_blocks_gradients_by_themselves() -> None:
    def make() -> Any:
        model = keras.Sequential([keras.Input((4,)), Skipping(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    batch = (np.random.default_rng(0).normal(size=(8, 4)).astype("float32"), np.ones((8, 1), "float32"))
    used, halves = [(True, False), (False, True)], [(0, 4), (4, 8)]
    engines = [engine_of(make, batch) for _ in used]
    own = []
    for rank, engine in enumerate(engines):
        engine.model.layers[0].used = list(used[rank])
        own.append(engine.compute(cut(batch, *halves[rank]), rank))
    packed = [engine.pack(own[rank], Share(rank, 0.5))[0] for rank, engine in enumerate(engines)]
    sums = [np.sum(arrays, axis=0) for arrays in zip(*packed, strict=True)]
    before = [np.array(each) for each in engines[0].model.trainable_variables]
    alone = engine_of(make, batch)
    expected = [np.zeros_like(each) for each in before]
    for rank in range(2):
        for place, variable in enumerate(alone.model.trainable_variables):
            variable.assign(before[place])
        alone.model.layers[0].used = list(used[rank])
        alone.apply(alone.compute(cut(batch, *halves[rank]), rank))
        for place, variable in enumerate(alone.model.trainable_variables):
            expected[place] += (np.array(variable) - before[place]) / 2
    for rank, engine in enumerate(engines):
        engine.apply(engine.unpack(sums, [], own[rank]))
        for place, variable in enumerate(engine.model.trainable_variables):
            np.testing.assert_allclose(np.array(variable) - before[place], expected[place], rtol=1e-4, atol=1e-6)
    moved = [bool(np.any(each)) for each in expected]
    assert moved == [True] * 4 + [False] * 2 + [True] * 2


class Choosing(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tables = [keras.layers.Embedding(6, 4) for _ in range(2)]
        self.chosen = 0

    def build(self, shape: Any) -> None:
        for table in self.tables:
            table.build(shape)

    def call(self, x: Any) -> Any:
        return keras.ops.mean(self.tables[self.chosen](x), axis=1)


def test_members_that_look_into_different_tables_send_the_same() -> None:
    def make() -> Any:
        model = keras.Sequential([keras.Input((3,), dtype="int32"), Choosing(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    batch = (np.arange(12, dtype="int32").reshape(4, 3) % 6, np.ones((4, 1), "float32"))
    packed, own = [], []
    engines = [engine_of(make, batch) for _ in range(2)]
    for rank, engine in enumerate(engines):
        engine.model.layers[0].chosen = rank
        own.append(engine.compute(batch, rank))
        packed.append(engine.pack(own[rank], Share(rank, 0.5)))
    assert not packed[0][1] and not packed[1][1]
    sums = [np.sum(arrays, axis=0) for arrays in zip(*(sums for sums, _ in packed), strict=True)]
    before = [keras.ops.convert_to_numpy(each).copy() for each in engines[0].model.trainable_variables]
    after = []
    for rank, engine in enumerate(engines):
        engine.apply(engine.unpack(sums, [], own[rank]))
        after.append([keras.ops.convert_to_numpy(each) for each in engine.model.trainable_variables])
    for a, b, old in zip(*after, before, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.any(a != old), "both tables have moved, on both members"


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
