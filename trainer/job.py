"""The face of the trainer: what a training script sees of its job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from ..errors import UsageError
from ..rendezvous.messages import Finished, Registered, Released
from . import refusals, units
from .ballot import Ballot, Sums
from .control import Control
from .data.loader import ElasticLoader
from .member import Change, Member
from .model import ElasticModel
from .ring.ring import Ring
from .state.buffers import BufferBackup
from .state.replica import Replica
from .state_exchange import StateExchange
from .step import AFTER_THE_VOTE, Step

if TYPE_CHECKING:
    from .checkpoint import Checkpoints


class Position:
    """Where the job is. Replicated: `step` committed steps, `samples` applied, `epoch`, and whether a stop was agreed."""

    def __init__(self) -> None:
        self.step = 0
        self.samples = 0
        self.epoch = 0
        self.stopped = False

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class Job:
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
        self._control = control
        self.seed = seed
        self._position = Position()
        self._replica = Replica()
        self._optimizers = list(optimizers.values())
        for name, module in models.items():
            refusals.check_model(name, module)
            self._replica.add_model(name, module)
        for name, optimizer in optimizers.items():
            refusals.check_optimizer(name, optimizer)
            self._replica.add_optimizer(name, optimizer)
            optimizer.register_step_pre_hook(self._before_optimizer_step)
        for name, other in others.items():
            self._replica.add(name, other)
        self._scalers = [other for other in others.values() if isinstance(other, torch.amp.GradScaler)]
        self._replica.add("position", self._position)
        self.models = {name: ElasticModel(module, self, ddp_options) for name, module in models.items()}
        self.device = next((p.device for module in models.values() for p in module.parameters()), torch.device("cpu"))
        self._checkpoints = checkpoints
        state = StateExchange(self._replica, checkpoints, self._position)
        self.member = Member(control, state, self.device.type == "cuda")
        self.member.step_number = lambda: self._position.step
        self.member.on_change = self._changed
        self.member.before_leaving = self._leaving
        self.buffers = BufferBackup(self._replica.models())
        self.current_step: Step | None = None
        self.metrics: dict[str, float] = {}
        self._logged: Sums = {}
        self._outstanding: list[tuple[ElasticLoader, int, int]] = []
        self._loaders: list[ElasticLoader] = []
        self._serving_key = 0
        self._stop_wanted = False
        self._started = False
        self._share = (1, 0)
        self.output_scale = 1.0
        self._callbacks: list[Callable[[Change], None]] = []
        control.send(Registered(control.identity.worker))

    # --- who and where ---

    @property
    def model(self) -> ElasticModel:
        """The model to call; the same object for the whole run."""
        if len(self.models) != 1:
            raise UsageError(f"this job has the models {', '.join(self.models)}: use job.models[name]")
        return next(iter(self.models.values()))

    @property
    def rank(self) -> int:
        return self._ring().rank

    @property
    def world_size(self) -> int:
        return self._ring().world_size

    @property
    def generation(self) -> int:
        return self._ring().generation

    @property
    def global_step(self) -> int:
        """Committed steps."""
        return self._position.step

    @property
    def samples(self) -> int:
        """Samples applied by committed steps, over all epochs and members."""
        return self._position.samples

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def stopped(self) -> bool:
        """An early stop was agreed."""
        return self._position.stopped

    # --- the loop ---

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, from the job's current one up to `count` - 1."""
        self.member.boundary()
        self._started = True
        while self._position.epoch < count and not self._position.stopped:
            yield self._position.epoch
            if self._position.stopped or self._agree_to_stop():
                return
            self._position.epoch += 1

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
        self._replica.add(f"loader/{len(self._loaders)}", loader.sampler)
        self._loaders.append(loader)
        return loader

    def step(self) -> Step:
        """The block of one step: `with job.step(): ...`."""
        return Step(self)

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

    def stop(self) -> None:
        """Ask for an early end: all members stop after the step, or the epoch's end, at which they have agreed on it."""
        self._stop_wanted = True

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
        """`value` (a number or a tensor) reduced over the members with "mean", "sum", "min" or "max"; between steps."""
        self._check_between_steps("job.allreduce")
        return units.allreduce(self.member, value, op)

    def log(self, **metrics: Any) -> None:
        """Note means over this member's samples; the step's vote makes them `job.metrics`, means over all samples.

        What is logged after the optimizer's step comes with the next vote. Every member logs the same names.
        """
        samples, _ = self._share
        for name, value in metrics.items():
            number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            self._logged[name] = (number * samples if samples else 0.0, float(samples))

    def register(self, name: str, obj: Any) -> Any:
        """Make `obj` part of the replicated state: anything with `state_dict` and `load_state_dict`, or a plain value.

        Returns `obj`; for a value that cannot be changed in place (a number, a text), a holder with `.value`.
        """
        if isinstance(obj, torch.amp.GradScaler):
            self._scalers.append(obj)
        return self._replica.register(f"user/{name}", obj)

    def on_change(self, callback: Callable[[Change], None]) -> None:
        """Have `callback` called on each member, at the same point, after each change of the membership."""
        self._callbacks.append(callback)

    # --- for the loader ---

    def before_batch(self) -> bool:
        if self.current_step is not None:
            raise UsageError("a batch was taken from the loader inside a job.step() block: take it before the block")
        if not self._outstanding:
            self._boundary()
        return not self._position.stopped

    def placement(self) -> tuple[int, int, int]:
        ring = self._ring()
        return ring.rank, ring.world_size, self._serving_key

    def served(self, loader: ElasticLoader, samples: int, total: int) -> None:
        self._outstanding.append((loader, samples, total))

    def withdrawn(self, loader: ElasticLoader) -> None:
        self._outstanding = [entry for entry in self._outstanding if entry[0] is not loader]

    # --- for the step ---

    def start_step(self, step: Step) -> None:
        if not self._outstanding:
            self._boundary()
        ring = self._ring()
        ring.begin_step()
        self.current_step = step
        self._share = self._outstanding[0][1:] if self._outstanding else (1, ring.world_size)

    def commit_step(self) -> None:
        total = sum(total for _, _, total in self._outstanding[:1])
        self._position.step += 1
        self._position.samples += total
        for loader, _, _ in self._outstanding:
            loader.commit()
        self._outstanding.clear()
        self.member.write_progress()

    def discard_step(self) -> None:
        for loader, _, _ in self._outstanding:
            loader.discard()
        self._outstanding.clear()
        self._logged.clear()
        self._serving_key += 1
        for scaler in self._scalers:
            scaler._per_optimizer_states.clear()  # or it would take the gradients of the redo for unscaled already
        for model in self.models.values():
            model.forget_ring()
            for parameter in model.module.parameters():
                parameter.grad = None

    def end_step(self) -> None:
        self.current_step = None
        if self.member.ring is not None:
            self.member.ring.refuse_collectives = None

    def cast_ballot(self) -> Ballot:
        rates = [
            float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups if "lr" in group
        ]
        return Ballot.cast(self._may_change() and self.member.change_wanted, self._stop_wanted, self._logged, rates)

    def read_ballot(self, ballot: Ballot, ring_left: bool) -> None:
        """Take over what was agreed. `ring_left`: the ring that was voted in is gone, and with it the wish to leave it."""
        ballot.check_learning_rates()
        means = ballot.means(sorted(self._logged))
        if means:
            self.metrics = means
        self._logged = {}
        if ballot.change_wanted and not ring_left:
            self.member.leave_agreed = True
        self._position.stopped = self._position.stopped or ballot.stop_wanted

    def training_ring(self) -> Ring | None:
        ring = self.member.ring
        if self.current_step is None or ring is None or ring.world_size == 1:
            return None
        return ring

    @property
    def refusal(self) -> str | None:
        """Why backward may not be called on what the model gives now."""
        return AFTER_THE_VOTE if self.current_step is not None and self.current_step.voted else None

    @property
    def gradient_weight(self) -> float:
        samples, total = self._share
        return samples / total if total else 1.0

    # --- the end ---

    def finish(self) -> None:
        """The script has come to its end: say so, and stay reachable until the whole job is done."""
        if not self._started:
            self.member.boundary()
        self._control.send(Finished(self._control.identity.worker))
        with self._control.changed:
            while not self._control.done and self._control.may_leave is None:
                self._control.changed.wait()  # ends at the latest with the agent
        self.close()

    def close(self) -> None:
        """Leave the ring and end what this job has started in this process."""
        for loader in self._loaders:
            loader.close()
        for model in self.models.values():
            model.forget_ring()
        self.member.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    # --- inside ---

    def _ring(self) -> Ring:
        if self.member.ring is None:
            self.member.boundary()
        assert self.member.ring is not None
        return self.member.ring

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.current_step is None:
            raise UsageError(
                "optimizer.step() was called outside of a block: put forward, backward and it into `with job.step():`"
            )
        self.current_step.vote()

    def _may_change(self) -> bool:
        """Not at an epoch's last vote: the code between two epochs has to run in the ring that it began in."""
        return all(not loader.sampler.is_last() or len(loader) == 1 for loader, _, _ in self._outstanding)

    def _agree_to_stop(self) -> bool:
        if self._ring().world_size > 1:
            self._stop_wanted = self.allreduce(float(self._stop_wanted), "max") > 0
        self._position.stopped = self._position.stopped or self._stop_wanted
        return self._position.stopped

    def _check_between_steps(self, what: str) -> None:
        if self.current_step is not None:
            raise UsageError(f"{what} was called inside a job.step() block: call it between two blocks")
        if self._outstanding:
            raise UsageError(
                f"{what} was called with a batch in hand: call it behind the block of that batch, since the batch may be "
                "another worker's after it"
            )
        if not self._started:
            raise UsageError(
                f"{what} was called before the first epoch or step: a worker that joins later would do so at another point "
                "of the script than the others. Call it inside the loop over job.epochs"
            )

    def _changed(self, change: Change) -> None:
        self._serving_key += 1
        for model in self.models.values():
            model.forget_ring()
        for callback in self._callbacks:
            callback(change)

    def _boundary(self) -> None:
        """Between two steps, where the script's own code for the one before has run."""
        self.member.boundary()
        self._started = True
        if self._checkpoints is not None and self._ring().rank == 0:
            self._checkpoints.save_if_due(self._replica, self._position.step)

    def _leaving(self, released: Released | None) -> None:
        if self.current_step is not None:
            self.buffers.restore()  # what it leaves behind is the state between two steps
        if released is not None and released.last_holder and self._checkpoints is not None:
            self._checkpoints.write_now(self._replica, self._position.step)


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
