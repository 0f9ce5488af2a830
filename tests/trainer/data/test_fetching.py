"""The processes that fetch ahead: what a replaced stream costs, whose failures count, and that none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import default_collate

from elastic_launch.trainer.pytorch.data.fetching import Prefetcher, Wanted


@pytest.fixture
def prefetcher() -> Iterator[Callable[..., Prefetcher]]:
    """Makes and starts prefetchers of forked processes, and ends them after the test."""
    made = []

    def make(dataset: Any, workers: int = 1, **options: Any) -> Prefetcher:
        made.append(
            Prefetcher(dataset, default_collate, num_workers=workers, multiprocessing_context="fork", **options)
        )
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def stream(*batches: list[int]) -> Iterator[Wanted]:
    return (Wanted(batch) for batch in batches)


class Gated:
    """Each sample waits until the test lets one through."""

    def __init__(self) -> None:
        self.gate = multiprocessing.get_context("fork").Semaphore(0)

    def let_through(self, samples: int) -> None:
        for _ in range(samples):
            self.gate.release()

    def __getitem__(self, index: int) -> int:
        assert self.gate.acquire(timeout=60)
        return index


class Failing:
    """Negative samples cannot be fetched."""

    def __getitem__(self, index: int) -> int:
        if index < 0:
            raise FileNotFoundError(f"sample {index}")
        return index


class Whole:
    """Fetches a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a data set with __getitems__ is asked for whole batches")


def test_a_replaced_stream_costs_no_more_than_the_sample_that_is_being_fetched(
    prefetcher: Callable[..., Prefetcher],
) -> None:
    dataset = Gated()
    fetching = prefetcher(dataset, prefetch_factor=4)
    fetching.replace(stream([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]))
    dataset.let_through(3)
    assert fetching.take().tolist() == [0, 1, 2]
    fetching.replace(stream([100, 101]))
    dataset.let_through(1 + 2)
    assert fetching.take().tolist() == [100, 101]
    assert not dataset.gate.acquire(block=False)


def test_a_failure_in_a_dropped_batch_concerns_nobody(prefetcher: Callable[..., Prefetcher]) -> None:
    fetching = prefetcher(Failing())
    fetching.replace(stream([1], [-2], [-3]))
    assert fetching.take().tolist() == [1]
    fetching.replace(stream([4]))
    assert fetching.take().tolist() == [4]


def test_a_failure_is_raised_with_its_batch_and_the_processes_go_on(prefetcher: Callable[..., Prefetcher]) -> None:
    fetching = prefetcher(Failing())
    fetching.replace(stream([1], [-2], [3]))
    assert fetching.take().tolist() == [1]
    with pytest.raises(FileNotFoundError, match="sample -2"):
        fetching.take()
    assert fetching.take().tolist() == [3]


def test_a_data_set_that_fetches_batches_is_asked_for_batches(prefetcher: Callable[..., Prefetcher]) -> None:
    fetching = prefetcher(Whole(), workers=2)
    fetching.replace(stream([1, 2], [3]))
    assert [fetching.take().tolist() for _ in range(2)] == [[10, 20], [30]]


def test_the_end_of_the_stream_is_no_batch(prefetcher: Callable[..., Prefetcher]) -> None:
    fetching = prefetcher(Failing())
    fetching.replace(stream([1]))
    fetching.take()
    with pytest.raises(RuntimeError, match="behind the end of the stream"):
        fetching.take()


def test_closing_ends_the_processes_and_starting_brings_others(prefetcher: Callable[..., Prefetcher]) -> None:
    fetching = prefetcher(Failing(), workers=2)
    before = set(multiprocessing.active_children())
    fetching.close()
    assert not before & set(multiprocessing.active_children())
    fetching.start()
    fetching.replace(stream([5]))
    assert fetching.take().tolist() == [5]


PARENT = """
import multiprocessing, sys
from torch.utils.data import default_collate
from elastic_launch.trainer.pytorch.data.fetching import Prefetcher

if __name__ == "__main__":
    fetching = Prefetcher([1, 2], default_collate, num_workers=2, multiprocessing_context=sys.argv[1])
    fetching.start()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_processes_die_at_once_with_a_killed_trainer(context: str, tmp_path: Any) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), context]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        parent.send_signal(signal.SIGKILL)
        for child in children:
            # Without help, torch's own watchdog in the worker processes takes up to 5 s.
            readable, _, _ = select.select([child], [], [], 3)
            assert readable, "a process that fetches outlived its trainer"
            os.close(child)
