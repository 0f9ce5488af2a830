"""The job of a fit: Keras's variables of any role as the replicated state, numpy arrays over the ring of our own sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import xxhash

from ..array_job import Array, ArrayJob
from ..control import Control
from ..data.serving import Loader
from ..joining import enter
from ..ring.ring import Ring
from ..ring.tcp.turns import Work
from ..state.arrays import ArrayReplica
from ..state.tree import pack
from ..units import agree
from .roles import replicated

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints

_CALLBACKS = "fit/callbacks"


class FitReplica(ArrayReplica):
    """Without the callbacks where replicas are compared: what a user's own keep, such as times, may differ."""

    def share_buffers(self, ring: Ring, lead: int) -> None:
        """Nothing: a step leaves batch-norm statistics equal on all members."""

    def digest(self) -> str:
        return xxhash.xxh3_128_hexdigest(pack(sorted(self.digests().items())))

    def digests(self) -> dict[str, str]:
        return {name: digest for name, digest in super().digests().items() if name != _CALLBACKS}


class FitJob(ArrayJob):
    """One worker's view of the job that fits `model`, whose variables have all been built."""

    def __init__(self, control: Control, model: keras.Model, seed: int, checkpoints: Checkpoints | None) -> None:
        self._optimizer = model.optimizer
        replica = FitReplica()
        variables = replicated(model)
        of_optimizer = {name: variable for name, variable in variables.items() if name.startswith("optimizer/")}
        replica.add_model("model", {name: each for name, each in variables.items() if name not in of_optimizer})
        replica.add_optimizer("optimizer", type(model.optimizer).__qualname__, of_optimizer)
        super().__init__(control, replica, self.make_ring, seed, checkpoints)
        self._registered()

    def add_loader(self, loader: Loader) -> None:
        """Its position is part of the state."""
        self._add_loader(loader)

    def replicate(
        self, begun: dict[str, int], callbacks: tuple[Callable[[], bytes], Callable[[bytes], object]]
    ) -> None:
        """Make the epoch that has begun, and the callbacks' state, read and set by two functions, part of the state."""
        self._replica.register("fit/begun", begun)
        self._replica.add_value(_CALLBACKS, *callbacks)

    def unit(self, compute: Callable[[Ring], bytes]) -> bytes:
        """What `compute` gives, agreed by all members; between steps."""
        self._check_between_steps("an evaluation")
        return agree(self.member, compute)

    def exchange(self, sums: Sequence[Array], tables: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """As reductions of the current step: the sums, in place, and for each of the `tables` the rows of all members.

        Rows are in the order of ranks, as they would be if one worker had the whole batch. Raises `RingError`.
        """
        ring = self.training_ring()
        assert ring is not None
        works: list[Work[Any]] = [ring.start_allreduce(array) for array in sums]
        gathered = []
        if tables:
            lengths = np.frombuffer(b"".join(ring.gather_bytes(np.array([len(t) for t in tables]).tobytes())), np.int64)
            for number, table in enumerate(tables):
                places = [
                    np.empty((length, *table.shape[1:]), table.dtype) for length in lengths[number :: len(tables)]
                ]
                works.append(ring.start_allgather(table, places))
                gathered.append(places)
        for work in works:
            work.wait()
        return list(sums), [np.concatenate(places) for places in gathered]

    def undo_block(self) -> None:
        """Nothing: a step changes no variable before it is agreed."""

    def _save_buffers(self) -> None:
        """Nothing, for the same reason."""

    def _seed(self, value: int) -> None:
        if keras.backend.backend() == "torch":
            from ..pytorch.randomness import seed_torch

            seed_torch(value)
        # TensorFlow's seed is in its graphs; to set another would empty its caches of compiled functions in each step.

    def _learning_rates(self) -> list[float]:
        """Without schedules: those follow from a variable that is equal on all members, and cost more than to read it."""
        rate = getattr(self._optimizer, "inner_optimizer", self._optimizer)._learning_rate
        return [float(rate.numpy())] if isinstance(rate, keras.Variable) else []


def join(model: keras.Model, seed: int, checkpoint: str | None, checkpoint_every: int) -> FitJob:
    """Make this process a worker of the job that fits `model`."""

    def make(control: Control, checkpoints: Checkpoints | None) -> FitJob:
        return FitJob(control, model, seed, checkpoints)

    return enter(make, checkpoint, checkpoint_every)
