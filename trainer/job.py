"""The face of the trainer: what a training script sees of its job, whichever framework it uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..rendezvous.messages import Finished, Registered, Released
from .ballot import Ballot, Sums
from .control import Control
from .data.serving import Loader
from .member import Change, Member
from .randomness import seed_for, seed_python
from .ring.ring import MakeRing, Ring
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


class BaseJob(ABC):
    """One worker's view of an elastic job. Made by `elastic.join`; used by the script's main thread."""

    code_of_failure = 1  # exit code where the script ends with an error of its own

    def __init__(
        self, control: Control, replica: Replica, make_ring: MakeRing, seed: int, checkpoints: Checkpoints | None
    ) -> None:
        self._control = control
        self.seed = seed
        self._position = Position()
        self._replica = replica
        self._replica.add("position", self._position)
        self._checkpoints = checkpoints
        self.member = Member(control, StateExchange(replica, checkpoints, self._position), make_ring)
        self.member.step_number = lambda: self._position.step
        self.member.on_change = self._changed
        self.member.before_leaving = self._leaving
        self.current_step: Step | None = None
        self.metrics: dict[str, float] = {}
        self._logged: Sums = {}
        self._missed_logs = True  # what the others have logged before this member was there, or was unwound
        self._outstanding: list[tuple[Loader, int, int]] = []
        self._loaders: list[Loader] = []
        self._serving_key = 0
        self._stop_wanted = False
        self._started = False
        self._share = (1, 0)
        self._callbacks: list[Callable[[Change], None]] = []

    def _registered(self) -> None:
        """All that makes up the structure is known: this worker may be counted."""
        self._control.send(Registered(self._control.identity.worker))

    # --- what a framework does ---

    @abstractmethod
    def allreduce(self, value: Any, op: str = "mean") -> Any:
        """`value` (a number or a tensor) reduced over the members with "mean", "sum", "min" or "max"; between steps."""

    @abstractmethod
    def _seed(self, value: int) -> None:
        """Seed the framework's global random generators."""

    @abstractmethod
    def _save_buffers(self) -> None:
        """Keep what a block changes ahead of the vote (batch-norm statistics), to be put back if it is unwound."""

    @abstractmethod
    def undo_block(self) -> None:
        """Put back what the block has changed ahead of the vote."""

    def _drop_gradients(self) -> None:
        """The block was unwound: nothing that it computed may be used."""

    def _forget_ring(self) -> None:
        """The generation has ended: drop what was made for its ring."""

    @abstractmethod
    def _learning_rates(self) -> list[float]:
        """Those of the optimizers, which must be equal on all members."""

    def cause_of(self, error: BaseException) -> BaseException:
        """The error that our code raised, if a framework has made another one of it on the way."""
        return error

    def _number(self, value: Any) -> float:
        return float(value)

    # --- who and where ---

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

    def step(self) -> Step:
        """The block of one step: `with job.step(): ...`."""
        return Step(self)

    def stop(self) -> None:
        """Ask for an early end: all members stop after the step, or the epoch's end, at which they have agreed on it."""
        self._stop_wanted = True

    def log(self, **metrics: Any) -> None:
        """Note means over this member's samples; the step's vote makes them `job.metrics`, means over all samples.

        What is logged after the optimizer's step comes with the next vote. Every member logs the same names.
        """
        samples, _ = self._share
        for name, value in metrics.items():
            number = self._number(value)
            self._logged[name] = (number * samples if samples else 0.0, float(samples))

    def register(self, name: str, obj: Any) -> Any:
        """Make `obj` part of the replicated state: anything with `state_dict` and `load_state_dict`, or a plain value.

        Returns `obj`; for a value that cannot be changed in place (a number, a text), a holder with `.value`.
        """
        return self._replica.register(f"user/{name}", obj)

    def on_change(self, callback: Callable[[Change], None]) -> None:
        """Have `callback` called on each member, at the same point, after each change of the membership."""
        self._callbacks.append(callback)

    # --- for the loader ---

    def _add_loader(self, loader: Loader) -> None:
        self._replica.add(f"loader/{len(self._loaders)}", loader.sampler)
        self._loaders.append(loader)

    def before_batch(self) -> bool:
        if self.current_step is not None:
            raise UsageError("a batch was taken from the loader inside a job.step() block: take it before the block")
        if not self._outstanding:
            self._boundary()
        return not self._position.stopped

    def placement(self) -> tuple[int, int, int]:
        ring = self._ring()
        return ring.rank, ring.world_size, self._serving_key

    def served(self, loader: Loader, samples: int, total: int) -> None:
        self._outstanding.append((loader, samples, total))

    def withdrawn(self, loader: Loader) -> None:
        self._outstanding = [entry for entry in self._outstanding if entry[0] is not loader]

    # --- for the step ---

    def start_step(self, step: Step) -> None:
        if not self._outstanding:
            self._boundary()
        ring = self._ring()
        ring.begin_step()
        self.current_step = step
        self._share = self._outstanding[0][1:] if self._outstanding else (1, ring.world_size)

    def begin_block(self) -> None:
        ring = self._ring()
        value = seed_for(self.seed, self._position.step + 1, ring.rank)
        self._seed(value)
        seed_python(value)
        self._save_buffers()

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
        self._missed_logs = True
        self._serving_key += 1
        self._drop_gradients()

    def end_step(self) -> None:
        self.current_step = None
        if self.member.ring is not None:
            self.member.ring.refuse_collectives = None

    def cast_ballot(self) -> Ballot:
        wanted = self._may_change() and self.member.change_wanted
        abstains = self._missed_logs and not self._logged
        return Ballot.cast(wanted, self._stop_wanted, self._logged, self._learning_rates(), abstains)

    def read_ballot(self, ballot: Ballot, ring_left: bool) -> None:
        """Take over what was agreed. `ring_left`: the ring that was voted in is gone, and with it the wish to leave it."""
        ballot.check_learning_rates()
        if self._missed_logs and not self._logged:
            means = {}
        else:
            means = ballot.means(sorted(self._logged))
        if means:
            self.metrics = means
        self._missed_logs = False
        self._logged = {}
        if ballot.change_wanted and not ring_left:
            self.member.leave_agreed = True
        self._position.stopped = self._position.stopped or ballot.stop_wanted

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
        self._forget_ring()
        self.member.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    def wait_until_closed(self, limit: float) -> None:
        """Give what closes beside this thread `limit` seconds."""

    # --- inside ---

    def _ring(self) -> Ring:
        if self.member.ring is None:
            self.member.boundary()
        assert self.member.ring is not None
        return self.member.ring

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
        self._forget_ring()
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
            self.undo_block()  # what it leaves behind is the state between two steps
        if released is not None and released.last_holder and self._checkpoints is not None:
            self._checkpoints.write_now(self._replica, self._position.step)
