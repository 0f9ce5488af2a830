"""The cursor: every sample of every epoch exactly once, at any sequence of world sizes, commits and broken steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from elastic_launch.errors import StateMismatchError, UsageError
from elastic_launch.trainer.data.order import Order
from elastic_launch.trainer.data.sampler import ElasticSampler


def run_epoch(members: list[ElasticSampler], worlds: list[tuple[int, bool]]) -> list[list[list[int]]]:
    """Run one epoch; `worlds` is, for each attempt at a step, a world size and whether it commits (later ones all do).

    Returns the committed steps, each as its members' parts. The members are processes that all keep the cursor.
    """
    committed = []
    attempts = iter(worlds)
    world, commits = 1, True
    while not members[0].at_end:
        world, commits = next(attempts, (world, True))
        for rank, member in enumerate(members):
            member.place(rank % world, world)
        parts = [member.part() for member in members[:world]]
        assert [sample for part in parts for sample in part] == members[-1].slice()
        if commits:
            committed.append(parts)
            for member in members:
                member.commit()
    return committed


@settings(max_examples=150, deadline=None)
@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 20),
    per_worker=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64),
    epochs=st.lists(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=30), min_size=1, max_size=3),
)
def test_every_sample_of_every_epoch_comes_exactly_once(
    length: int, batch: int, per_worker: bool, shuffle: bool, seed: int, epochs: list[list[tuple[int, bool]]]
) -> None:
    policy: dict[str, int] = {"batch_per_worker" if per_worker else "global_batch": batch}
    members = [ElasticSampler(length, seed=seed, shuffle=shuffle, **policy) for _ in range(6)]
    for epoch, worlds in enumerate(epochs):
        for member in members:
            member.start_epoch(epoch)
        steps = run_epoch(members, worlds)
        assert Counter(sample for parts in steps for part in parts for sample in part) == Counter(range(length))
        for parts in steps:
            sizes = [len(part) for part in parts]
            assert max(sizes) - min(sizes) <= 1
            assert sum(sizes) == (batch * len(parts) if per_worker else batch) or parts is steps[-1]


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 60), batch=st.integers(1, 20), worlds=st.lists(st.integers(1, 6), max_size=20))
def test_the_steps_are_the_same_at_any_sequence_of_world_sizes(length: int, batch: int, worlds: list[int]) -> None:
    members = [ElasticSampler(length, batch, seed=3) for _ in range(6)]
    churned = run_epoch(members, [(world, True) for world in worlds])
    alone = run_epoch([ElasticSampler(length, batch, seed=3)], [])
    assert [[sample for part in parts for sample in part] for parts in churned] == [parts[0] for parts in alone]


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 60), batch=st.integers(1, 20), done=st.integers(0, 20), rank=st.integers(0, 2))
def test_a_joiner_goes_on_where_the_others_are(length: int, batch: int, done: int, rank: int) -> None:
    holder, joiner = ElasticSampler(length, batch, seed=1), ElasticSampler(length, batch, seed=1)
    holder.start_epoch(4)
    for _ in range(done):
        holder.commit()
    joiner.load_state_dict(holder.state_dict())
    assert joiner.part(rank, 3) == holder.part(rank, 3)
    assert joiner.state_dict() == holder.state_dict()


def test_drop_last_leaves_out_the_short_step() -> None:
    sampler = ElasticSampler(10, 4, drop_last=True)
    assert len(sampler) == 2
    sampler.commit()
    assert sampler.is_last()
    sampler.commit()
    assert sampler.at_end
    assert sampler.slice() == []
    assert not sampler.is_last()


def test_the_last_step_may_be_short_and_some_parts_empty() -> None:
    sampler = ElasticSampler(10, 8, shuffle=False)
    assert len(sampler) == 2
    sampler.commit()
    assert sampler.is_last()
    assert sampler.step_size() == 2
    assert [sampler.part(rank, 4) for rank in range(4)] == [[8], [9], [], []]


def test_epochs_differ_and_seeds_differ() -> None:
    orders = {tuple(Order(20, seed, epoch).samples(0, 20)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_is_fixed_for_ever() -> None:
    assert Order(8, 0, 0).samples(0, 8).tolist() == [1, 4, 5, 6, 2, 7, 0, 3]
    assert Order(8, 2**64 + 1, 7).samples(0, 8).tolist() == [3, 2, 4, 0, 6, 7, 1, 5]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70_000), st.integers(0, 2**64), st.integers(0, 1000))
def test_an_order_holds_each_sample_once(length: int, seed: int, epoch: int) -> None:
    assert sorted(Order(length, seed, epoch).samples(0, length).tolist()) == list(range(length))


@given(st.data())
def test_any_piece_of_an_order_is_the_same_as_in_the_whole(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40_000))
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    whole = Order(length, 5, 6).samples(0, length)
    assert Order(length, 5, 6).samples(start, stop).tolist() == whole[start:stop].tolist()


def test_a_shuffled_order_leaves_hardly_any_trace_of_the_first_one() -> None:
    order = Order(10_000, 1, 1).samples(0, 10_000).astype(int)
    places = np.arange(10_000)
    assert abs(np.corrcoef(order, places)[0, 1]) < 0.05
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert (order == places).sum() < 10
    halves = np.histogram2d(order, places, bins=10)[0]  # 100 expected in each cell
    assert halves.min() > 50 and halves.max() < 150


def test_the_steps_of_a_served_placement_can_be_committed_after_a_resize() -> None:
    sampler = ElasticSampler(100, batch_per_worker=4)
    sampler.place(0, 3)
    served = sampler.step_size()
    sampler.place(0, 2)
    sampler.commit(served)
    assert sampler.consumed == 12
    assert sampler.step_size() == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_it_serves_as_a_batch_sampler_and_stays_where_it_is(workers: int) -> None:
    sampler = ElasticSampler(10, 4, shuffle=False)
    sampler.commit()
    sampler.place(1, 2)
    batches = [batch.tolist() for batch in DataLoader(list(range(10)), batch_sampler=sampler, num_workers=workers)]
    assert batches == [[6, 7], [9]]
    assert sampler.consumed == 4


def test_as_a_batch_sampler_an_empty_part_gets_one_sample_of_its_step() -> None:
    sampler = ElasticSampler(5, 4, shuffle=False)
    sampler.place(2, 3)
    assert list(sampler) == [[3], [4]]
    sampler.commit()
    assert sampler.part() == []


def test_batch_sizes_come_with_the_position(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ElasticSampler(100, 8)
    sampler.load_state_dict(ElasticSampler(100, 16).state_dict())
    assert sampler.global_batch == 16
    assert "gives way" in caplog.text
    sampler.place(1, 3)
    sampler.load_state_dict(ElasticSampler(100, batch_per_worker=5).state_dict())
    assert sampler.global_batch == 15


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("length", ElasticSampler(9, 4)),
        ("seed", ElasticSampler(10, 4, seed=1)),
        ("shuffle", ElasticSampler(10, 4, shuffle=False)),
        ("drop_last", ElasticSampler(10, 4, drop_last=True)),
    ],
)
def test_a_position_in_another_order_is_refused(name: str, other: ElasticSampler) -> None:
    with pytest.raises(StateMismatchError, match=f"sampler's {name} is"):
        ElasticSampler(10, 4).load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0, "global_batch": 1}, "at least one sample"),
        ({"length": 5, "global_batch": 0}, "at least 1"),
        ({"length": 5, "batch_per_worker": -1}, "at least 1"),
        ({"length": 5}, "either global_batch= .* or batch_per_worker="),
        ({"length": 5, "global_batch": 2, "batch_per_worker": 2}, "either global_batch= .* or batch_per_worker="),
        ({"length": 5, "global_batch": 2, "seed": -1}, "seed -1 is negative"),
        ({"length": 5, "global_batch": 6, "drop_last": True}, "drop_last leaves nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElasticSampler(**arguments)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 2 is not a rank of 2 members"):
        ElasticSampler(5, 2).place(2, 2)
