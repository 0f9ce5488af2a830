"""Serving each global step's share exactly once: the turns that a job and its loaders take, whatever fetches the samples.

The job decides when a batch may be served and when a step has committed; a loader knows samples. They meet in `Turns`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ...errors import UsageError
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

    def served(self, loader: Loader, samples: int, total: int) -> None:
        """A batch of `samples` of the global step's `total` samples is outstanding.

        With 0 samples the batch is one sample that must count nothing.
        """

    def withdrawn(self, loader: Loader) -> None:
        """The outstanding batch of `loader` will not be stepped on: the user has left the loop."""


class _Served(NamedTuple):
    """An outstanding batch: where in the data it begins, and the samples of its global step."""

    epoch: int
    consumed: int
    total: int


class Loader(ABC):
    """Iterates over this member's parts of an epoch's global steps: one pass per epoch of the job.

        for epoch in job.epochs(10):
            for x, y in loader:
                with job.step():
                    ...

    Each pass goes from the position, which all members share and which moves when a step commits, to the epoch's end.
    So a worker that joins in the middle of an epoch serves the rest of it, and nothing if the epoch is over for this
    loader. If the loop is left early (`break`), the rest of the epoch is left out: the next epoch begins with the next
    turn of `job.epochs`; a second loop in the same epoch goes on behind the last committed step.

    `len` is the number of steps in an epoch.
    """

    def __init__(self, job: Turns, sampler: ElasticSampler) -> None:
        self._job = job
        self.sampler = sampler
        self._served: _Served | None = None
        self._passed: int | None = None

    @abstractmethod
    def _next_batch(self, key: int) -> Any:
        """This member's part of the step at the sampler's cursor; if that is empty, one sample that stands in.

        `key` is the number that `Turns.placement` gave.
        """

    def _forget_ahead(self) -> None:
        """Drop what was fetched ahead of the cursor: it may not come next."""

    def close(self) -> None:
        """End what fetches; it starts again if another batch is asked for."""

    def _pass_ended(self) -> None:
        """An epoch has been served to its end."""

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
                    self._forget_ahead()
                    self._job.withdrawn(self)
                raise
        self._passed = self.sampler.epoch
        self._pass_ended()

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
        self._forget_ahead()

    def _begin_epoch(self) -> None:
        epoch = self._job.epoch
        if self.sampler.epoch != epoch:
            self.sampler.start_epoch(epoch)
        elif self._passed == epoch and self.sampler.at_end:
            raise UsageError(
                f"the loader has served all of epoch {epoch} already: loop over it once in each turn of "
                "`for epoch in job.epochs(n):`"
            )

    def _refuse_if_outstanding(self) -> None:
        if self._served is not None:
            raise UsageError(
                f"the batch at sample {self._served.consumed} of epoch {self._served.epoch} was served, but no step "
                "has committed it: put what is done with a batch into `with job.step():`, one block for each batch, "
                "and cut a batch that is too large for memory into micro-batches inside the block"
            )
