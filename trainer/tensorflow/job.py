"""The job of a script that trains with a TensorFlow loop of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..array_job import ArrayJob
from ..control import Control
from ..data.arrays import ArrayLoader
from ..ring.fusing import FusedSum
from ..ring.gradients import sum_gradients
from ..ring.sockets import SocketRing
from ..state.arrays import ArrayReplica, array_of
from . import failures
from .gradients import average_gradients
from .on_gpu import GpuSums
from .optimizers import ask_before_applying, graphs_around
from .rings import ring_maker
from .variables import by_path, handle_of

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints


class Job(ArrayJob):
    """One worker's view of an elastic job. Made by `elastic.join`; used by the script's main thread.

    `models` are variables by their paths, one dict for each model; `optimizers` Keras's, built.
    """

    def __init__(
        self,
        control: Control,
        models: Mapping[str, Mapping[str, Any]],
        optimizers: Mapping[str, Any],
        seed: int,
        bucket: int,
        checkpoints: Checkpoints | None,
    ) -> None:
        replica = ArrayReplica()
        for name, variables in models.items():
            replica.add_model(name, variables)
        for name, optimizer in optimizers.items():
            replica.add_optimizer(name, type(optimizer).__qualname__, by_path(name, optimizer.variables))
        self._optimizers = [each for each in optimizers.values() if hasattr(each, "learning_rate")]
        self._bucket = bucket
        self._untrained = [v for variables in models.values() for v in variables.values() if not v.trainable]
        self._kept: list[Any] = []
        replicated = [v for variables in models.values() for v in variables.values()]
        replicated += [v for optimizer in optimizers.values() for v in optimizer.variables]
        self._handles = [handle for variable in replicated if (handle := handle_of(variable)) is not None]
        self._averaging: weakref.WeakSet[Any] = weakref.WeakSet()
        for optimizer in optimizers.values():
            ask_before_applying(optimizer, self._may_apply)
        make_ring = ring_maker()
        self._on_gpu = make_ring is not SocketRing
        super().__init__(control, replica, make_ring, seed, checkpoints)
        self._registered()

    def average_gradients(self, gradients: Any) -> Any:
        """The gradients of the whole global batch: the mean over its samples, if each member's are means over its part.

        `gradients` is a list, or any nested structure, of `tf.Tensor`, `tf.IndexedSlices` and None, as `tape.gradient`
        gives it. All that a step needs is averaged in one call, inside its block, ahead of what applies it: with the call
        the members agree on the step. May be called inside of a `tf.function`, which may be traced ahead of the first block.
        """
        if self.current_step is None and tf.executing_eagerly():
            raise UsageError("job.average_gradients is called inside a block: put the step into `with job.step():`")
        if not tf.executing_eagerly():
            self._averaging.add(graphs_around()[0])
        return average_gradients(gradients, self._reduce, self._on_gpu, self._handles)

    def loader(
        self,
        data: Any,
        global_batch: int | None = None,
        *,
        batch_per_worker: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> ArrayLoader:
        """This worker's part of each global batch of `data`: an array or tensor, or a tuple, list or dict of them, with
        samples in the first dimension, or a sequence of samples. It serves numpy arrays."""
        loader = ArrayLoader(
            self,
            data,
            global_batch=global_batch,
            batch_per_worker=batch_per_worker,
            seed=self.seed if seed is None else seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._add_loader(loader)
        return loader

    def evaluate(self, data: Any, means: Callable[[Any], Mapping[str, Any]], batch_size: int = 256) -> dict[str, float]:
        """Exact means over `data` (as for `loader`), shared between the members: `means(batch)` gives means over the batch."""
        return self.means_over(data, means, batch_size)

    def allreduce(self, value: Any, op: str = "mean") -> Any:
        """A float for a number, a tensor for a tensor."""
        result = super().allreduce(value.numpy() if tf.is_tensor(value) else value, op)
        return tf.constant(result) if tf.is_tensor(value) else result

    # --- for the step ---

    def cause_of(self, error: BaseException) -> BaseException:
        return failures.original(error)

    def undo_block(self) -> None:
        for variable, value in zip(self._untrained, self._kept, strict=False):
            variable.assign(value)

    def _save_buffers(self) -> None:
        self._kept = [array_of(variable) for variable in self._untrained]

    def _seed(self, value: int) -> None:
        """Nothing: to set TensorFlow's seed empties its caches. Keras's seed generators are variables, and so replicated."""

    def _learning_rates(self) -> list[float]:
        return [float(np.asarray(optimizer.learning_rate)) for optimizer in self._optimizers]

    def _may_apply(self) -> bool:
        """Whether the members agree on the step. Of a graph that is traced ahead of the first block, nobody knows yet."""
        step = self.current_step
        if step is not None and step.voted:
            return True
        if tf.executing_eagerly():
            return False
        return step is None or any(graph in self._averaging for graph in graphs_around())

    def _reduce(self, gradients: list[Any], all_alike: bool) -> list[Any]:
        step, ring = self.current_step, self.training_ring()
        assert step is not None
        if ring is not None:
            sums: Any = GpuSums if self._on_gpu else FusedSum
            total = sums(ring, self.gradient_weight, self._bucket)
            gradients = sum_gradients(ring, gradients, self.gradient_weight, all_alike, total)
        step.vote()
        return gradients
