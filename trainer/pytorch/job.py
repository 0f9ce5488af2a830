"""The job of a script that trains with PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from ...errors import UsageError
from ...rendezvous.meeting.client import MeetingClient
from ..control import Control
from ..job import BaseJob
from ..ring.ring import Ring, RingOptions
from . import refusals, units
from .data.loader import ElasticLoader
from .model import ElasticModel
from .randomness import seed_torch
from .ring import undertaker
from .ring.ring import TorchRing
from .state.buffers import BufferBackup
from .state.replica import TorchReplica

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints


class Job(BaseJob):
    """One worker's view of an elastic job. Made by `elastic.join`; used by the script's main thread."""

    def __init__(
        self,
        control: Control,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        others: Mapping[str, Any],
        seed: int,
        ddp_options: dict[str, Any],
        checkpoints: Checkpoints | None,
    ) -> None:
        replica = TorchReplica()
        self._optimizers = list(optimizers.values())
        for name, module in models.items():
            refusals.check_model(name, module)
            replica.add_model(name, module)
        for name, optimizer in optimizers.items():
            refusals.check_optimizer(name, optimizer)
            replica.add_optimizer(name, optimizer)
            optimizer.register_step_pre_hook(self._before_optimizer_step)
        for name, other in others.items():
            replica.add(name, other)
        self._scalers = [other for other in others.values() if isinstance(other, torch.amp.GradScaler)]
        self.models = {name: ElasticModel(module, self, ddp_options) for name, module in models.items()}
        self.device = next((p.device for module in models.values() for p in module.parameters()), torch.device("cpu"))
        self._buffers = BufferBackup(replica.models())
        self.output_scale = 1.0
        super().__init__(control, replica, self._make_ring, seed, checkpoints)
        self._registered()

    @property
    def model(self) -> ElasticModel:
        """The model to call; the same object for the whole run."""
        if len(self.models) != 1:
            raise UsageError(f"this job has the models {', '.join(self.models)}: use job.models[name]")
        return next(iter(self.models.values()))

    def loader(
        self,
        dataset: Any,
        global_batch: int | None = None,
        *,
        batch_per_worker: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> ElasticLoader:
        """This worker's part of each global batch of `dataset` (any with `__len__` and `__getitem__`).

        Either `global_batch`, the number of samples of a step whatever the number of workers, or `batch_per_worker`.
        `options` are those of `torch.utils.data.DataLoader` (num_workers, collate_fn, pin_memory, ...).
        """
        loader = ElasticLoader(
            self,
            dataset,
            global_batch=global_batch,
            batch_per_worker=batch_per_worker,
            seed=self.seed if seed is None else seed,
            shuffle=shuffle,
            drop_last=drop_last,
            **options,
        )
        self._add_loader(loader)
        return loader

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside it, backward only accumulates; the first backward after it, in the same block, reduces."""
        with contextlib.ExitStack() as stack:
            for model in self.models.values():
                stack.enter_context(model.no_sync())
            yield

    def micro_batches(self, batch: Any, size: int) -> Iterator[Any]:
        """Cut this worker's part into pieces of at most `size` samples, to call forward and backward on each in one block.

        `batch` is a tensor or a tuple, list or dict of tensors with samples in the first dimension. The loss of a piece is
        its own mean over samples: the pieces are weighted here so that the sum is the part's mean.
        """
        if self.current_step is None:
            raise UsageError("job.micro_batches is used inside a job.step() block")
        total = _samples_in(batch)
        starts = range(0, total, size)
        for start in starts:
            piece = _cut(batch, start, min(start + size, total))
            self.output_scale = (min(start + size, total) - start) / total
            try:
                if start == starts[-1]:
                    yield piece
                else:
                    with self.no_sync():
                        yield piece
            finally:
                self.output_scale = 1.0

    def evaluate(
        self,
        dataset: Any,
        means: units.MeansOfBatch,
        batch_size: int = 256,
        *,
        model: str | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> dict[str, float]:
        """Exact means over `dataset`, shared between the members: `means(module, batch)` gives means over the batch."""
        self._check_between_steps("job.evaluate")
        module = (self.models[model] if model is not None else self.model).module
        return units.evaluate(self.member, module, dataset, means, batch_size, collate_fn)

    def allreduce(self, value: Any, op: str = "mean") -> Any:
        self._check_between_steps("job.allreduce")
        return units.allreduce(self.member, value, op)

    def register(self, name: str, obj: Any) -> Any:
        if isinstance(obj, torch.amp.GradScaler):
            self._scalers.append(obj)
        return super().register(name, obj)

    # --- for the model ---

    def training_ring(self) -> TorchRing | None:
        ring = self.member.ring
        if self.current_step is None or ring is None or ring.world_size == 1:
            return None
        assert isinstance(ring, TorchRing)
        return ring

    # --- what torch does in a step ---

    def undo_block(self) -> None:
        self._buffers.restore()

    def _save_buffers(self) -> None:
        self._buffers.save()

    def _seed(self, value: int) -> None:
        seed_torch(value)

    def _drop_gradients(self) -> None:
        for scaler in self._scalers:
            scaler._per_optimizer_states.clear()  # or it would take the gradients of the redo for unscaled already
        for model in self.models.values():
            model.forget_ring()
            for parameter in model.module.parameters():
                parameter.grad = None

    def _forget_ring(self) -> None:
        for model in self.models.values():
            model.forget_ring()

    def _learning_rates(self) -> list[float]:
        return [
            float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups if "lr" in group
        ]

    def _number(self, value: Any) -> float:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)

    def wait_until_closed(self, limit: float) -> None:
        undertaker.wait_until_done(limit)

    # --- inside ---

    def _make_ring(
        self, generation: int, rank: int, world_size: int, options: RingOptions, meeting: MeetingClient | None
    ) -> Ring:
        return TorchRing(generation, rank, world_size, replace(options, cuda=self.device.type == "cuda"), meeting)

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.current_step is None:
            raise UsageError(
                "optimizer.step() was called outside of a block: put forward, backward and it into `with job.step():`"
            )
        self.current_step.vote()


def _samples_in(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return len(batch)
    if isinstance(batch, Mapping):
        return _samples_in(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)) and batch:
        return _samples_in(batch[0])
    raise UsageError(
        f"job.micro_batches cannot cut a {type(batch).__name__}: give it tensors, or a tuple, list or dict of them"
    )


def _cut(batch: Any, start: int, end: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[start:end]
    if isinstance(batch, Mapping):
        return {key: _cut(value, start, end) for key, value in batch.items()}
    return type(batch)(_cut(value, start, end) for value in batch)
