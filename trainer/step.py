"""One optimizer step as a unit: all or nothing, on every member.

    with job.step():            # forward, backward; reductions run over the ring
        ...
        optimizer.step()        # the first one votes before it applies anything
                                # the end of the block commits

If the ring breaks before the vote has passed, the member forms the next generation right there. What its members hold then
decides: either the step counts as passed and is finished, or the block is unwound and served again.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import RingError, UsageError
from .ballot import Ballot
from .exchange import Action
from .member import Pending
from .probe import reached
from .ring.guard import came_from_ring, errors_of_rings

if TYPE_CHECKING:
    from .job import BaseJob


AFTER_THE_VOTE = (
    "a collective, or a second backward, was started after the optimizer step inside one job.step() block: nothing may be "
    "exchanged once the step has been agreed. Split the block into two"
)


class Unwound(BaseException):
    """Carries a worker out of a block that is done again. Not an `Exception`, so that no handler in the block takes it."""


class Step:
    """The block of one step. Not reentrant; made by `BaseJob.step`."""

    def __init__(self, job: BaseJob) -> None:
        self._job = job
        self.voted = False
        self.committed = False
        """Whether the step was applied; False behind a block that was unwound and will be served again."""
        self._unwound = False

    def __enter__(self) -> Step:
        job = self._job
        if job.current_step is not None:
            raise UsageError("job.step() blocks cannot be nested: end the first one before the next")
        job.start_step(self)
        job.begin_block()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            cause = self._job.cause_of(error) if error is not None else None
            if isinstance(cause, Unwound) or (self._unwound and cause is None):  # a handler in the block took it
                return True
            if cause is not None:
                if self.voted or not self._is_ring_error(cause):
                    if cause is not error:
                        raise cause
                    return False
                _forget_frames(error)
                _forget_frames(cause)
                self._job.member.recover(Pending())
                self._unwind()
                return True
            if not self.voted:
                try:
                    self.vote()
                except Unwound:
                    return True
            self._job.commit_step()
            self.committed = True
            return False
        finally:
            self._job.end_step()

    def vote(self) -> None:
        """Pass the step's agreement with all members, once. Raises `Unwound` if the step is to be done again."""
        self.check_not_unwound()
        if self.voted:
            return
        job = self._job
        ring = job.member.ring
        assert ring is not None
        reached("voting", ring.generation)
        ballot = job.cast_ballot()
        own = ballot.to_bytes()
        try:
            ring.settle_reductions()
            job.member.wait_for_lease(ring)
            ring.sum_for_vote(ballot.vector)
        except RingError:
            ballot = self._finish_or_unwind(ring.reductions_succeeded(), own)
        reached("voted", ring.generation)
        job.member.passed(ballot.to_bytes())
        self.voted = True
        job.read_ballot(ballot, ring_left=job.member.ring is not ring)
        if job.member.ring is not None:
            job.member.ring.refuse_collectives = AFTER_THE_VOTE

    def check_not_unwound(self) -> None:
        """Raise `Unwound` once more if code of the block goes on behind it: out of a graph it comes as an `Exception`."""
        if self._unwound:
            raise Unwound()

    def _finish_or_unwind(self, stands_behind: bool, own: bytes) -> Ballot:
        pending = Pending("vote", stands_behind, own)
        if self._job.member.recover(pending) is Action.APPLY:
            return Ballot.from_bytes(pending.result)
        self._unwind()
        raise Unwound()

    def _unwind(self) -> None:
        self._unwound = True
        self._job.undo_block()
        self._job.discard_step()

    def _is_ring_error(self, error: BaseException) -> bool:
        ring = self._job.member.ring
        if ring is None:
            return False
        if ring.guard.broken is None and isinstance(error, tuple(errors_of_rings)):
            ring.abort(str(error))  # an error of NCCL's, which does not pass through the guard
        return ring.guard.broken is not None and came_from_ring(error)


def _forget_frames(error: BaseException | None) -> None:
    """A traceback keeps the frames of backward alive, and with them the dead ring."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
