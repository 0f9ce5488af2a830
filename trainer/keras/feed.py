"""This member's rows of each global batch of a source, and the position in it that all members share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...errors import StateMismatchError
from ..data.sampler import ElasticSampler
from ..data.serving import Loader, Turns
from .sources import Source


class Cursor:
    """The position, in batches: the job's epoch and its committed steps, and where these are in the passes over the data.

    Without `steps_per_epoch` an epoch is a pass. With it, an epoch goes on where the one before has ended, as in `model.fit`.
    """

    def __init__(self, source: Source, steps_per_epoch: int | None) -> None:
        self._source = source
        self._steps_per_epoch = steps_per_epoch
        self.rank = 0
        self.world_size = 1
        self.epoch = 0
        self.consumed = 0
        self.data_pass = 0
        self.taken = 0

    def place(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def rows(self) -> tuple[int, int]:
        """This member's rows of the batch at the cursor: start and stop, equal if there are fewer samples than members."""
        base, extra = divmod(self.step_size(), self.world_size)
        start = self.rank * base + min(self.rank, extra)
        return start, start + base + (self.rank < extra)

    def part(self) -> range:
        return range(*self.rows())

    def batch(self) -> Any:
        """This member's part of the batch at the cursor; the first row if it is empty."""
        start, stop = self.rows()
        if start == stop:
            start, stop = 0, 1
        self._source.enter(self.epoch)
        return self._source.part(self.data_pass, self.taken, start, stop)

    def step_size(self) -> int:
        """The samples of the batch at the cursor, over all members; 0 at the epoch's end."""
        return 0 if self.at_end else self._source.rows(self.data_pass, self.taken)

    @property
    def at_end(self) -> bool:
        return not self._has_step(0)

    def is_last(self) -> bool:
        return self._has_step(0) and not self._has_step(1)

    def commit(self, samples: int | None = None) -> None:
        self.consumed += 1
        self.taken += 1

    def start_epoch(self, epoch: int) -> None:
        at_end_of_pass = not self._source.has(self.data_pass, self.taken)
        self.epoch, self.consumed = epoch, 0
        if self._steps_per_epoch is None or at_end_of_pass:
            self.data_pass, self.taken = self.data_pass + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "data_pass": self.data_pass,
            "taken": self.taken,
            "steps_per_epoch": self._steps_per_epoch,
            "data": self._source.identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        here = self.state_dict()
        for name in ("steps_per_epoch", "data"):
            if state[name] != here[name]:
                raise StateMismatchError(
                    f"the data of this worker has {name} {here[name]}, and {state[name]} in the job: start every worker with the "
                    "same data and the same arguments of fit"
                )
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self.data_pass, self.taken = state["data_pass"], state["taken"]

    def __len__(self) -> int:
        """Steps in an epoch; of data whose end is not known, 1 if there is one, else any other number."""
        if self._steps_per_epoch is not None:
            return self._steps_per_epoch
        if self._source.batches is not None:
            return self._source.batches
        return 1 if self.consumed == 0 and self.is_last() else 2

    def _has_step(self, ahead: int) -> bool:
        if self._steps_per_epoch is not None and self.consumed + ahead >= self._steps_per_epoch:
            return False
        self._source.enter(self.epoch)
        return self._source.has(self.data_pass, self.taken + ahead)


class Feed(Loader):
    """Serves this member's rows of each global batch of an epoch."""

    def __init__(self, job: Turns, source: Source, steps_per_epoch: int | None) -> None:
        self.cursor = Cursor(source, steps_per_epoch)
        super().__init__(job, cast(ElasticSampler, self.cursor))

    def _next_batch(self, key: int) -> Any:
        return self.cursor.batch()
