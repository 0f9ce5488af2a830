"""The data loader of a job: serves this member's part of each global step, and the slice again if the step is lost.

The job decides when a batch may be served and when a step has committed; the loader knows samples and processes. They
meet in `Turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from ...errors import UsageError
from .fetching import Prefetcher, Wanted, fetch
from .sampler import ElasticSampler


class Turns(Protocol):
    """What a loader needs of the job that drives it.

    For each batch that was `served` the job calls the loader's `commit` when the step has committed or `discard` when
    its block was unwound, unless the loader has said `withdrawn`.
    """

    @property
    def epoch(self) -> int:
        """The epoch that the job is in, from 0."""

    def before_batch(self) -> bool:
        """Called before each batch. May block, take part in a change and load another position into the sampler.

        With a batch outstanding (two loaders side by side) it must change nothing. False ends the iteration.
        """

    def placement(self) -> tuple[int, int, int]:
        """Rank, world size, and a number that is another one whenever what was prefetched is not to be served."""

    def served(self, loader: ElasticLoader, samples: int, total: int) -> None:
        """A batch of `samples` of the global step's `total` samples is outstanding.

        With 0 samples the batch is one sample that must count nothing.
        """

    def withdrawn(self, loader: ElasticLoader) -> None:
        """The outstanding batch of `loader` will not be stepped on: the user has left the loop."""


class _Served(NamedTuple):
    """An outstanding batch: where in the data it begins, and the samples of its global step."""

    epoch: int
    consumed: int
    total: int


class _Want(NamedTuple):
    """All that decides what a batch holds."""

    epoch: int
    consumed: int
    global_batch: int
    rank: int
    world_size: int
    key: int


class ElasticLoader:
    """Iterates over this member's parts of an epoch's global steps: one pass per epoch of the job.

        for epoch in job.epochs(10):
            for x, y in loader:
                with job.step():
                    ...

    Each pass goes from the position, which all members share and which moves when a step commits, to the epoch's end.
    So a worker that joins in the middle of an epoch serves the rest of it, and nothing if the epoch is over for this
    loader. If the loop is left early (`break`), the rest of the epoch is left out: the next epoch begins with the next
    turn of `job.epochs`; a second loop in the same epoch goes on behind the last committed step.

    `global_batch` samples make a step at any world size; with `batch_per_worker` instead, the step grows with the world
    size. `num_workers`, `collate_fn`, `pin_memory`, `timeout`, `worker_init_fn`, `multiprocessing_context` and
    `prefetch_factor` are those of `torch.utils.data.DataLoader`. The worker processes start here and stay over all
    epochs and changes of membership (unless `persistent_workers=False` ends them with each epoch); their random
    generators are seeded for each batch. `len` is the number of steps in an epoch.
    """

    def __init__(
        self,
        job: Turns,
        dataset: Any,
        *,
        global_batch: int | None = None,
        batch_per_worker: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        **options: Any,
    ) -> None:
        _refuse(dataset, num_workers, options)
        self._job = job
        self.dataset = dataset
        self.sampler = ElasticSampler(
            len(dataset),
            global_batch,
            batch_per_worker=batch_per_worker,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._collate = collate_fn or default_collate
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._persistent_workers = persistent_workers
        self._prefetcher: Prefetcher | None = None
        if num_workers > 0:
            self._prefetcher = Prefetcher(
                dataset, self._collate, num_workers=num_workers, pin_memory=pin_memory, **options
            )
            # Before the worker is counted as a member: nobody waits for it, and the processes inherit no ring.
            self._prefetcher.start()
        self._ahead: _Want | None = None
        self._served: _Served | None = None
        self._passed: int | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        began = False
        while True:
            self._refuse_if_outstanding()
            if began and self.sampler.at_end:
                break
            if not self._job.before_batch():
                return
            rank, world_size, key = self._job.placement()
            self.sampler.place(rank, world_size)
            if not began:
                began = True
                self._begin_epoch()
            if self.sampler.at_end:
                break
            batch = self._next_batch(key)
            total = self.sampler.step_size()
            self._served = _Served(self.sampler.epoch, self.sampler.consumed, total)
            self._job.served(self, len(self.sampler.part()), total)
            try:
                yield batch
            except GeneratorExit:
                if self._served is not None:
                    self._served = None
                    self._ahead = None
                    self._job.withdrawn(self)
                raise
        self._passed = self.sampler.epoch
        if not self._persistent_workers:
            self.close()

    def commit(self) -> None:
        """The step of the outstanding batch has committed: the position moves behind it."""
        served, self._served = self._served, None
        if served is None:
            return
        if (self.sampler.epoch, self.sampler.consumed) != (served.epoch, served.consumed):
            raise RuntimeError(
                f"the position has moved under an outstanding step: {served}, {self.sampler.state_dict()}"
            )
        self.sampler.commit(served.total)

    def discard(self) -> None:
        """The block of the outstanding batch was unwound: the same slice is served again."""
        self._served = None
        self._ahead = None
        if self._prefetcher is not None:
            self._prefetcher.drop()

    def close(self) -> None:
        """End the worker processes; they start again if another batch is asked for."""
        self._ahead = None
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _begin_epoch(self) -> None:
        epoch = self._job.epoch
        if self.sampler.epoch != epoch:
            self.sampler.start_epoch(epoch)
        elif self._passed == epoch and self.sampler.at_end:
            raise UsageError(
                f"the loader has served all of epoch {epoch} already: loop over it once in each turn of "
                "`for epoch in job.epochs(n):`"
            )

    def _next_batch(self, key: int) -> Any:
        sampler = self.sampler
        if self._prefetcher is None:
            batch = fetch(self.dataset, next(iter(sampler)), self._collate)
            return pinned(batch) if self._pin_memory else batch  # type: ignore[no-untyped-call]
        want = _Want(sampler.epoch, sampler.consumed, sampler.global_batch, sampler.rank, sampler.world_size, key)
        self._prefetcher.start()
        if want != self._ahead:
            self._prefetcher.replace(self._stream())
        self._ahead = None
        batch = self._prefetcher.take()
        self._ahead = want._replace(consumed=want.consumed + sampler.step_size())
        return batch

    def _stream(self) -> Iterator[Wanted]:
        """What to fetch from the position on, each with a seed of its own."""
        sampler = self.sampler
        for consumed, indices in sampler.ahead():
            yield Wanted(indices, hash((sampler.seed, sampler.epoch, consumed, sampler.rank)) % 2**63)

    def _refuse_if_outstanding(self) -> None:
        if self._served is not None:
            raise UsageError(
                f"the batch at sample {self._served.consumed} of epoch {self._served.epoch} was served, but no step "
                "has committed it: put what is done with a batch into `with job.step():`, one block for each batch, "
                "and cut a batch that is too large for memory into micro-batches inside the block"
            )


def _refuse(dataset: Any, num_workers: int, options: dict[str, Any]) -> None:
    """Raise UsageError for what cannot be served exactly once, or is not the loader's to choose."""
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            "an IterableDataset has no samples to share out by number: give a map-style data set (`__getitem__` and "
            "`__len__`; an index of record offsets is enough), or iterate over it yourself, outside job.loader, and "
            "keep its position with job.register"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(f"{type(dataset).__name__} is no map-style data set: it needs `__getitem__` and `__len__`")
    if num_workers < 0:
        raise UsageError(f"num_workers={num_workers}: give 0 to fetch in the training process, or more")
    if "batch_size" in options:
        raise UsageError("say global_batch= (samples of a step over all workers) or batch_per_worker=, not batch_size=")
    if "generator" in options:
        raise UsageError("say seed=, not generator=: the order of the samples must be the same on all workers")
    if {"sampler", "batch_sampler"} & set(options):
        raise UsageError(
            "a sampler would choose samples without regard to the other workers: leave it out, or use a DataLoader of "
            "your own with an ElasticSampler as its batch_sampler"
        )
    known = {"timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor"}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"unknown option of a loader: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
