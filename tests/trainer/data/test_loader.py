"""The loader against a job of the test's own: what is served, served again, left out and refused."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from elastic_launch.errors import UsageError
from elastic_launch.trainer.pytorch.data.loader import ElasticLoader


class Job:
    """Does what the test says: a place, an epoch, and for each batch asked for a change or the end."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.epoch = 0
        self.rank, self.world_size, self.key = rank, world_size, 0
        self.stopped = False
        self.outstanding: dict[ElasticLoader, tuple[int, int]] = {}
        self.asked: Callable[[], None] = lambda: None

    def move(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.key = rank, world_size, self.key + 1

    def before_batch(self) -> bool:
        self.asked()
        return not self.stopped

    def placement(self) -> tuple[int, int, int]:
        return self.rank, self.world_size, self.key

    def served(self, loader: ElasticLoader, samples: int, total: int) -> None:
        self.outstanding[loader] = (samples, total)

    def withdrawn(self, loader: ElasticLoader) -> None:
        del self.outstanding[loader]

    def commit(self) -> None:
        for loader in self.outstanding:
            loader.commit()
        self.outstanding.clear()

    def discard(self) -> None:
        for loader in self.outstanding:
            loader.discard()
        self.outstanding.clear()
        self.key += 1


class Numbers:
    """Sample i is i, and the process that fetched it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


PROCESSES = {
    "here": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


@pytest.fixture(params=PROCESSES)
def processes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where batches are fetched, as options of the loader."""
    return PROCESSES[request.param]


@pytest.fixture
def make() -> Iterator[Callable[..., ElasticLoader]]:
    """Makes loaders, and ends their processes after the test."""
    made = []

    def make_loader(*arguments: Any, **options: Any) -> ElasticLoader:
        made.append(ElasticLoader(*arguments, **options))
        return made[-1]

    yield make_loader
    for loader in made:
        loader.close()


def numbers(batch: Any) -> list[int]:
    samples: list[int] = batch[0].tolist()
    return samples


def test_every_sample_comes_exactly_once_under_kills_joins_and_redone_steps(
    make: Callable[..., ElasticLoader], processes: dict[str, Any]
) -> None:
    jobs = [Job(), Job(), Job()]
    loaders = [make(job, Numbers(50), global_batch=7, seed=5, **processes) for job in jobs]
    choose = random.Random(0)
    for epoch in range(2):
        seen: Counter[int] = Counter()
        iterators = []
        for job, loader in zip(jobs, loaders, strict=True):
            job.epoch = epoch
            iterators.append(iter(loader))
        world = 0
        while True:
            if choose.random() < 0.3 or not world:
                world = choose.randint(1, 3)
                for rank, job in enumerate(jobs):
                    job.move(rank % world, world)
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                break
            commits = choose.random() < 0.7
            for member, (job, loader, batch) in enumerate(zip(jobs, loaders, batches, strict=True)):
                samples, total = job.outstanding[loader]
                assert total == loader.sampler.step_size()
                assert numbers(batch)[:samples] == loader.sampler.part(member % world, world)
                if commits and member < world:
                    seen.update(numbers(batch)[:samples])
                job.commit() if commits else job.discard()
        assert batches == [None] * 3
        assert seen == Counter(range(50))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_processes_stay_over_epochs_and_generations(make: Callable[..., ElasticLoader], workers: int) -> None:
    job = Job()
    loader = make(job, Numbers(16), global_batch=2, num_workers=workers, multiprocessing_context="fork")
    fetched_by = set()
    for job.epoch in range(3):
        for _, process in loader:
            fetched_by.update(process.tolist())
            job.move(0, job.epoch % 2 + 1)
            job.commit()
    assert len(fetched_by) == workers
    assert os.getpid() not in fetched_by


def test_the_processes_end_with_each_epoch_if_they_are_not_to_persist(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    options = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": False}
    loader = make(job, Numbers(4), global_batch=2, **options)
    fetched_by = []
    for job.epoch in range(2):
        for _, process in loader:
            fetched_by.append(int(process[0]))
            job.commit()
        with pytest.raises(ProcessLookupError):
            os.kill(fetched_by[-1], 0)
    assert len(set(fetched_by)) == 2


def test_an_empty_part_is_served_as_one_sample_that_counts_nothing(
    make: Callable[..., ElasticLoader], processes: dict[str, Any]
) -> None:
    job = Job(rank=2, world_size=3)
    loader = make(job, Numbers(4), global_batch=2, **processes)
    for batch in loader:
        assert job.outstanding[loader] == (0, 2)
        assert len(numbers(batch)) == 1
        job.commit()
    assert loader.sampler.consumed == 4


def test_a_joiner_serves_the_rest_of_the_epoch(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    job.epoch = 3
    loader = make(job, Numbers(10), global_batch=4, shuffle=False)
    position = {**loader.sampler.state_dict(), "epoch": 3, "consumed": 4}

    def join() -> None:
        loader.sampler.load_state_dict(position)
        job.asked = lambda: None

    job.asked = join
    served = []
    for batch in loader:
        served.append(numbers(batch))
        job.commit()
    assert served == [[4, 5, 6, 7], [8, 9]]


def test_a_joiner_serves_nothing_of_an_epoch_that_is_over_for_this_loader(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    job.epoch = 3
    loader = make(job, Numbers(10), global_batch=4)
    loader.sampler.load_state_dict({**loader.sampler.state_dict(), "epoch": 3, "consumed": 10})
    assert list(loader) == []
    job.epoch = 4
    assert next(iter(loader)) is not None
    assert loader.sampler.epoch == 4


def test_a_change_at_a_batch_may_bring_the_position_of_another_epoch(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(10), global_batch=4, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    job.discard()
    job.epoch = 7
    job.asked = lambda: loader.sampler.load_state_dict({**loader.sampler.state_dict(), "epoch": 7, "consumed": 8})
    assert numbers(next(iterator)) == [8, 9]


def test_the_loop_ends_when_the_job_says_so(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(10), global_batch=2)
    for _ in loader:
        job.commit()
        job.stopped = True
    assert loader.sampler.consumed == 2


def test_a_loop_that_is_left_before_its_step_leaves_nothing_outstanding(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(10), global_batch=2, shuffle=False)
    for _ in loader:
        break
    assert not job.outstanding
    assert numbers(next(iter(loader))) == [0, 1]


def test_leaving_the_loop_early_leaves_out_the_rest_of_the_epoch(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(10), global_batch=2, shuffle=False)
    for batch in loader:
        job.commit()
        if 3 in numbers(batch):
            break
    again = next(iter(loader))
    assert numbers(again) == [4, 5]
    job.epoch = 1
    assert numbers(next(iter(loader))) == [0, 1]


def test_two_loaders_side_by_side_are_redone_together(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    first = make(job, Numbers(6), global_batch=2, shuffle=False)
    second = make(job, Numbers(20), global_batch=5, shuffle=False)
    served = []
    for x, y in zip(first, second, strict=False):
        assert set(job.outstanding) == {first, second}
        served.append((numbers(x)[0], numbers(y)[0]))
        job.discard() if len(served) == 2 else job.commit()
    assert served == [(0, 0), (2, 5), (2, 5), (4, 10)]
    assert not job.outstanding
    job.epoch = 1
    assert [numbers(batch)[0] for batch in next(zip(first, second, strict=False))] == [0, 0]


def test_the_longer_loader_first_takes_its_batch_back(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    longer, shorter = make(job, Numbers(6), global_batch=2), make(job, Numbers(4), global_batch=2)
    for _ in zip(longer, shorter, strict=False):
        job.commit()
    assert not job.outstanding
    assert longer.sampler.consumed == 4


def test_the_global_batch_can_follow_the_world_size(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(20), batch_per_worker=4, shuffle=False)
    served = []
    for batch in loader:
        served.append(numbers(batch))
        job.move(1, 2)
        job.commit()
    assert served == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]


def test_len_is_the_number_of_steps_in_an_epoch(make: Callable[..., ElasticLoader]) -> None:
    assert len(make(Job(), Numbers(10), global_batch=4)) == 3
    assert len(make(Job(), Numbers(10), global_batch=4, drop_last=True)) == 2


def test_a_batch_without_a_step_is_refused_at_the_next(make: Callable[..., ElasticLoader]) -> None:
    iterator = iter(make(Job(), Numbers(10), global_batch=2))
    next(iterator)
    with pytest.raises(UsageError, match=r"put what is done with a batch into `with job.step\(\):`"):
        next(iterator)


def test_a_second_pass_in_one_epoch_is_refused(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(2), global_batch=2)
    for _ in loader:
        job.commit()
    with pytest.raises(UsageError, match=r"for epoch in job.epochs\(n\)"):
        next(iter(loader))


def test_a_position_that_moved_under_a_step_is_noticed(make: Callable[..., ElasticLoader]) -> None:
    job = Job()
    loader = make(job, Numbers(10), global_batch=2)
    iterator = iter(loader)
    next(iterator)
    loader.sampler.commit()
    with pytest.raises(RuntimeError, match="moved under an outstanding step"):
        loader.commit()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "options", "way_out"),
    [
        (Stream(), {"global_batch": 2}, "map-style data set"),
        (iter([1]), {"global_batch": 2}, "it needs `__getitem__` and `__len__`"),
        (Numbers(3), {"batch_size": 2}, "say global_batch="),
        (Numbers(3), {"global_batch": 2, "sampler": [0]}, "DataLoader of your own"),
        (Numbers(3), {"global_batch": 2, "generator": torch.Generator()}, "say seed="),
        (Numbers(3), {"global_batch": 2, "num_wrokers": 2}, "unknown option of a loader: num_wrokers"),
        (Numbers(3), {"global_batch": 2, "num_workers": -1}, "give 0"),
        (Numbers(3), {}, "either global_batch= .* or batch_per_worker="),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_way_out(dataset: Any, options: dict[str, Any], way_out: str) -> None:
    with pytest.raises(UsageError, match=way_out):
        ElasticLoader(Job(), dataset, **options)


class Drawn:
    """Samples that are random numbers, as augmentation draws them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[float, float]:
        return random.random(), float(torch.rand(()))


def test_what_a_batch_draws_does_not_depend_on_the_number_of_processes(make: Callable[..., ElasticLoader]) -> None:
    drawn = []
    for workers in (1, 2):
        job = Job()
        options = {"num_workers": workers, "multiprocessing_context": "fork"}
        loader = make(job, Drawn(), global_batch=3, **options)
        drawn.append([])
        for batch in loader:
            drawn[-1].append(torch.stack(batch).tolist())
            job.commit()
    assert drawn[0] == drawn[1]
    assert len({str(batch) for batch in drawn[0]}) == 4


def begin(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.length = 1000 + worker_id  # type: ignore[attr-defined]


class Length(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.length


def test_the_function_of_the_user_that_begins_a_process_finds_its_data_set(make: Callable[..., ElasticLoader]) -> None:
    options = {"num_workers": 1, "multiprocessing_context": "fork", "worker_init_fn": begin}
    loader = make(Job(), Length(4), global_batch=2, **options)
    _, lengths = next(iter(loader))
    assert lengths.tolist() == [1000, 1000]


def fail(worker_id: int) -> None:
    raise KeyError("no such file")


def test_a_process_that_cannot_begin_fails_at_once(make: Callable[..., ElasticLoader]) -> None:
    with pytest.raises(KeyError, match="no such file"):
        make(Job(), Numbers(4), global_batch=2, num_workers=1, multiprocessing_context="fork", worker_init_fn=fail)
