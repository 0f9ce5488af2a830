"""What a member asks of the communicator of one generation, whichever framework's tensors it carries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import UsageError
from ...rendezvous.meeting.client import MeetingClient
from .guard import Guard

Vector: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RingOptions:
    """`address` is what this worker's sockets bind; the limits are in seconds; `backend` (gloo or tcp) is for CPU tensors."""

    address: str = "127.0.0.1"
    cuda: bool = False
    backend: str = "gloo"
    forming_limit: float = 60.0
    operation_limit: float = 330.0


class Ring(ABC):
    """One generation's communicator. Made by `form`; ended, once, by `close`. `abort` may come from any thread, any time.

    Whatever fails in it ends the ring: `guard` says why, and all waits raise `RingError`.
    """

    def __init__(
        self, generation: int, rank: int, world_size: int, options: RingOptions, meeting: MeetingClient | None
    ) -> None:
        self.generation = generation
        self.rank = rank
        self.world_size = world_size
        self.guard = Guard(generation)
        self.meeting = meeting
        self.options = options
        self.refuse_collectives: str | None = None
        """Why nothing may be started; None if it may."""
        if meeting is not None:
            self.guard.on_abort(lambda: meeting.abort(f"generation {generation} was aborted"))

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is made of, in words; members of different kinds cannot form a ring."""

    @abstractmethod
    def connect(self) -> None:
        """Start connecting, on a thread of its own."""

    @abstractmethod
    def form(self) -> None:
        """Wait until connected. Raises `RingError` when aborted or impossible."""

    @abstractmethod
    def begin_step(self) -> None:
        """Forget the reductions of the step before."""

    @abstractmethod
    def reductions_succeeded(self) -> bool:
        """Whether every reduction of this step has ended well, so that this member holds the reduced gradients."""

    @abstractmethod
    def settle_reductions(self) -> None:
        """Wait for this step's reductions on devices; raises `RingError` if one did not end well."""

    @abstractmethod
    def sum_for_vote(self, ballot: Vector) -> None:
        """Sum `ballot` over the ring, in place, past every refusal of collectives. Raises `RingError`.

        The sum is made in rank order: the same bits on every member.
        """

    @abstractmethod
    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Everybody's `data` in rank order. Raises `RingError`."""

    def abort(self, reason: str) -> None:
        """End every wait on this ring at once. From any thread, at any time, more than once."""
        self.guard.abort(reason)

    @abstractmethod
    def close(self) -> None:
        """End the ring: its sockets and threads go. Never raises, never waits."""

    def check_usable(self) -> None:
        """Raise `UsageError` (collectives are refused) or `RingError` (aborted) if nothing can be started."""
        if self.refuse_collectives is not None:
            raise UsageError(self.refuse_collectives)
        self.guard.check()


MakeRing = Callable[[int, int, int, RingOptions, MeetingClient | None], Ring]
"""Of generation, rank, world size, options and meeting point."""
