"""The ring of one generation over our own sockets, for arrays of any framework in the CPU's memory. It needs none itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import RingError, UsageError
from ...rendezvous.meeting.client import MeetingClient
from .ring import Ring, RingOptions, Vector
from .tcp.buffers import Array
from .tcp.ring import TcpRing
from .tcp.turns import Work

T = TypeVar("T")


class SocketRing(Ring):
    """Collectives are those of `TcpRing`: made by `run`, which waits, or begun by `start`, as reductions of the step."""

    def __init__(
        self, generation: int, rank: int, world_size: int, options: RingOptions, meeting: MeetingClient | None
    ) -> None:
        super().__init__(generation, rank, world_size, options, meeting)
        self._below = TcpRing(
            f"generation-{generation}",
            rank,
            world_size,
            address=options.address,
            secret=meeting.secret if meeting is not None else "",
            forming_limit=options.forming_limit,
            operation_limit=options.operation_limit,
        )
        self.guard.on_abort(lambda: self._below.abort(self.guard.broken or "it was aborted"))
        self._below.on_abort(self.guard.abort)
        self._forming: Work[None] | None = None
        self._reductions: list[Work[Any]] = []
        self._asked_in_vain = False  # in this step: whoever has caught that error lacks what it asked for

    @property
    def kind(self) -> str:
        return "tcp"

    def connect(self) -> None:
        self._forming = self._below.start_forming(self.meeting)

    def form(self) -> None:
        if self._forming is None:
            self.connect()
        assert self._forming is not None
        try:
            self._forming.wait()  # ends at its own limit, and on abort
        except RingError as error:
            self.guard.check()
            raise RingError(f"could not connect the ring of generation {self.generation}: {error}") from error
        self.guard.check()

    def run(self, call: Callable[[TcpRing], T]) -> T:
        """What `call` returns, which waits for a collective, on this thread. Raises `RingError`."""
        self.check_usable()
        try:
            return self._run(call)
        except RingError:
            self._asked_in_vain = True
            raise

    def check_usable(self) -> None:
        try:
            super().check_usable()
        except RingError:
            self._asked_in_vain = True
            raise

    def start(self, call: Callable[[TcpRing], Work[T]]) -> Work[T]:
        """A collective that `call` starts: one of this step's reductions. Raises `RingError`, as waiting for it may."""
        self.check_usable()
        work = call(self._below)
        if self.guard.enter(work):
            work.when_done(self._over)
        self._reductions.append(work)
        return work

    def start_allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> Work[None]:
        return self.start(lambda ring: ring.start_allreduce(array, operation, out))

    def start_allgather(self, array: Any, out: Any = None) -> Work[list[Array]]:
        return self.start(lambda ring: ring.start_allgather(array, out))

    def begin_step(self) -> None:
        self._reductions, self._asked_in_vain = [], False

    def reductions_succeeded(self) -> bool:
        return not self._asked_in_vain and all(work.done() and work.exception() is None for work in self._reductions)

    def settle_reductions(self) -> None:
        for work in self._reductions:
            try:
                work.wait()
            except RingError:
                self.guard.check()
                raise
        self.guard.check()

    def sum_for_vote(self, ballot: Vector) -> None:
        self.guard.check()
        if self.world_size > 1:
            self._run(lambda ring: ring.allreduce(ballot))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self.run(lambda ring: ring.gather_bytes(data))

    def close(self) -> None:
        self.guard.abort("closed")
        if self.meeting is not None:
            self.meeting.close()

    def _over(self, work: Work[Any]) -> None:
        self.guard.leave(work)

    def _run(self, call: Callable[[TcpRing], T]) -> T:
        with self.guard.waiting():
            try:
                return call(self._below)
            except RingError as error:
                self.guard.abort(str(error))
            except UsageError as error:
                self.guard.abort(str(error))  # the others wait for a collective that this member cannot make
                raise
        raise self.guard.error()
