"""The data position as a cursor: an epoch, and the samples of it that committed steps have consumed.

Step k of an epoch is a fixed slice of that epoch's permutation, whoever computes it; each member takes its part of the
slice. The cursor moves only when a step commits. So every sample of every epoch is applied exactly once at any sequence
of world sizes, without a list of indices ever being exchanged. No framework is needed here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ...errors import StateMismatchError, UsageError
from .order import Order

logger = logging.getLogger(__name__)


class ElasticSampler:
    """A cursor over `length` samples that cuts each epoch's permutation into global steps, and those into parts.

    `global_batch` samples make a step, at any world size (the epoch's last step may be shorter, or is left out with
    `drop_last`). With `batch_per_worker` instead, a step has that many samples for each member, so the global batch
    follows the world size that `place` gave.

    By itself it is the `batch_sampler` of a `torch.utils.data.DataLoader`: iterating yields this member's parts of the
    steps from the cursor to the epoch's end, and leaves the cursor where it is. Call `commit` after each optimizer step
    and `start_epoch` before the next epoch; iterate anew whenever `place` was called. A member whose part is empty gets
    one sample of the slice all the same, so that it can take part in the step's collectives: its gradient must count
    nothing (`part` tells: it is empty).

    The order depends on (`seed`, epoch) alone. `state_dict` holds plain values, replicated like an optimizer's.
    """

    def __init__(
        self,
        length: int,
        global_batch: int | None = None,
        *,
        batch_per_worker: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if length < 1:
            raise UsageError(f"a dataset of {length} samples has no step to take: give one with at least one sample")
        if (global_batch is None) == (batch_per_worker is None):
            raise UsageError("say either global_batch= (constant) or batch_per_worker= (follows the world size)")
        if (batch := global_batch if global_batch is not None else batch_per_worker) is None or batch < 1:
            raise UsageError(f"a batch of {batch} samples is not possible: it must be at least 1")
        if seed < 0:
            raise UsageError(f"seed {seed} is negative: it must be 0 or more")
        if drop_last and length < batch:
            raise UsageError(
                f"drop_last leaves nothing of {length} samples in steps of {batch}: leave it out or use smaller steps"
            )
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.batch_per_worker = batch_per_worker
        self.global_batch = batch
        self.rank = 0
        self.world_size = 1
        self.epoch = 0
        self.consumed = 0
        self._order: tuple[int, Order] | None = None

    # --- this member's place -------------------------------------------------------------------------------------

    def place(self, rank: int, world_size: int) -> None:
        """Take the place `rank` of `world_size`; between steps only, and on all members after the same step."""
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is not a rank of {world_size} members: give 0 to {world_size - 1}")
        self.rank, self.world_size = rank, world_size
        if self.batch_per_worker is not None:
            self.global_batch = self.batch_per_worker * world_size

    # --- the step at the cursor ----------------------------------------------------------------------------------

    def slice(self) -> list[int]:
        """The samples of the next global step; empty at the epoch's end."""
        return self._samples(self.consumed, self.step_size())

    def part(self, rank: int | None = None, world_size: int | None = None) -> list[int]:
        """One member's share of `slice()`: contiguous, sizes differ by at most one, maybe empty.

        Without arguments this member's.
        """
        return self._samples(*self._share(self.consumed, rank, world_size))

    def step_size(self) -> int:
        """The samples of the next global step, over all members; 0 at the epoch's end."""
        return self._step_size(self.consumed)

    def is_last(self) -> bool:
        """Whether the next step is the epoch's last."""
        size = self.step_size()
        return size > 0 and self._step_size(self.consumed + size) == 0

    @property
    def at_end(self) -> bool:
        """Whether every step of the epoch has committed."""
        return self.step_size() == 0

    # --- moving the cursor ---------------------------------------------------------------------------------------

    def commit(self, samples: int | None = None) -> None:
        """Move behind the step that has committed; `samples` if it was cut before the last `place`."""
        self.consumed += self.step_size() if samples is None else samples

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`."""
        self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, int | bool | None]:
        """The position, and what all members must agree on: plain values."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "global_batch": self.global_batch if self.batch_per_worker is None else None,
            "batch_per_worker": self.batch_per_worker,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a position. Batch sizes come with it, as a learning rate does with an optimizer's state.

        Raises StateMismatchError if it is a position in another order of samples.
        """
        for name in ("length", "seed", "shuffle", "drop_last"):
            if state[name] != getattr(self, name):
                raise StateMismatchError(
                    f"the sampler's {name} is {getattr(self, name)} here and {state[name]} in the job: "
                    f"start every worker with the same data set and the same {name}"
                )
        here = self.state_dict()
        for name in ("global_batch", "batch_per_worker"):
            if state[name] != here[name]:
                logger.warning("%s=%s of this worker gives way to the job's %s", name, here[name], state[name])
        self.batch_per_worker = state["batch_per_worker"]
        if self.batch_per_worker is None:
            self.global_batch = state["global_batch"]
        self.place(self.rank, self.world_size)
        self.epoch, self.consumed = state["epoch"], state["consumed"]

    # --- as a batch_sampler --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps in a whole epoch at the present global batch."""
        whole, rest = divmod(self.length, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return (samples for _, samples in self.ahead())

    def ahead(self) -> Iterator[tuple[int, list[int]]]:
        """The steps from the cursor to the epoch's end: where each begins, and what this member fetches for it."""
        consumed = self.consumed
        while size := self._step_size(consumed):
            yield consumed, self._samples(*self._share(consumed)) or self._samples(consumed, 1)
            consumed += size

    # -------------------------------------------------------------------------------------------------------------

    def _step_size(self, consumed: int) -> int:
        remaining = self.length - consumed
        if self.drop_last and remaining < self.global_batch:
            return 0
        return min(self.global_batch, remaining)

    def _share(self, consumed: int, rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
        """Start and size of one member's part of the step behind `consumed`."""
        rank = self.rank if rank is None else rank
        world_size = self.world_size if world_size is None else world_size
        base, extra = divmod(self._step_size(consumed), world_size)
        return consumed + rank * base + min(rank, extra), base + (rank < extra)

    def _samples(self, start: int, size: int) -> list[int]:
        if not self.shuffle:
            return list(range(start, start + size))
        if self._order is None or self._order[0] != self.epoch:
            self._order = (self.epoch, Order(self.length, self.seed, self.epoch))
        samples: list[int] = self._order[1].samples(start, min(start + size, self.length)).tolist()
        return samples
