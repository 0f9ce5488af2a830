"""The data loader of a job: this member's part of each global step, fetched here or by processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from ....errors import UsageError
from ...data.sampler import ElasticSampler
from ...data.serving import Loader, Turns
from .fetching import Prefetcher, Wanted, fetch


class _Want(NamedTuple):
    """All that decides what a batch holds."""

    epoch: int
    consumed: int
    global_batch: int
    rank: int
    world_size: int
    key: int


class ElasticLoader(Loader):
    """Serves a map-style data set: one pass per epoch of the job, see `Loader`.

    `global_batch` samples make a step at any world size; with `batch_per_worker` instead, the step grows with the world
    size. `num_workers`, `collate_fn`, `pin_memory`, `timeout`, `worker_init_fn`, `multiprocessing_context` and
    `prefetch_factor` are those of `torch.utils.data.DataLoader`. The worker processes start here and stay over all
    epochs and changes of membership (unless `persistent_workers=False` ends them with each epoch); their random
    generators are seeded for each batch.
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
        sampler = ElasticSampler(
            len(dataset),
            global_batch,
            batch_per_worker=batch_per_worker,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        super().__init__(job, sampler)
        self.dataset = dataset
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

    def discard(self) -> None:
        super().discard()
        if self._prefetcher is not None:
            self._prefetcher.drop()

    def close(self) -> None:
        """End the worker processes; they start again if another batch is asked for."""
        self._ahead = None
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _forget_ahead(self) -> None:
        self._ahead = None

    def _pass_ended(self) -> None:
        if not self._persistent_workers:
            self.close()

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
