"""The ring of one generation, without a framework: form, collectives, abort, close."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from ....errors import ElasticError, RingError
from . import forming
from .buffers import Array
from .collectives import Call, Collectives
from .forming import Meeting, Place
from .lanes import Lanes
from .lifeline import Lifeline
from .turns import Turns, Work

T = TypeVar("T")


class TcpRing:
    """One member's side of it. It may be used by any number of threads; collectives are made in the order of the calls.

    Arrays are those of any framework on the CPU (see buffers.py), and are worked on in place. Each collective has a form that
    waits and one, `start_…`, that returns a `Work`; all members must make the same calls in the same order. Whatever fails
    ends the ring: all other calls, of its neighbours too, raise `RingError`, and what was being reduced is of no use.

    `group` names the ring among all that meet at its meeting point. `address` is what this member listens on. Limits are in
    seconds: `forming_limit` for all of forming, `operation_limit` for a wait in which not a byte comes or goes.
    """

    def __init__(
        self,
        group: str,
        rank: int,
        world_size: int,
        *,
        address: str = "127.0.0.1",
        secret: str = "",
        forming_limit: float = 60.0,
        operation_limit: float = 330.0,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._place = Place(rank, world_size, address, secret, group, forming_limit)
        self._limit = operation_limit
        self._lifeline = Lifeline(f"ring {group}")
        self._calls = Collectives(rank, world_size)
        self._turns = Turns(f"tcp-ring-{group}", self._lifeline.release)
        self._lanes: Lanes | None = None
        self._number = 0
        self._began: float | None = None
        self._leaving: str | None = None

    # --- the ring's life ---

    def form(self, meeting: Meeting | None) -> None:
        """Connect to the neighbours. Raises `RingError` if that is impossible, or the ring was aborted.

        `meeting` is only needed in a ring of more than one. Its own waits must end when the ring is aborted (`on_abort`).
        """
        self._run(self._forming(meeting))

    def start_forming(self, meeting: Meeting | None) -> Work[None]:
        return self._start(self._forming(meeting))

    def abort(self, reason: str) -> None:
        """End every call in progress, and every later one, at once. From any thread, at any time, more than once.

        The sockets are closed, so that the neighbours hear of it; those that are still in a collective that this member has
        been through go on.
        """
        if self._leaving is None:
            self._leaving = reason
        leaves_in_order = self._turns.end()
        lanes = self._lanes
        self._lifeline.end(self._leaving, lanes.say_goodbye if leaves_in_order and lanes is not None else None)
        self._turns.finish()

    def close(self, limit: float = 5.0) -> None:
        """Leave the ring: nothing is left of it then, no socket and no thread."""
        self.abort("it was closed")
        self._turns.join(limit)

    @property
    def broken(self) -> str | None:
        """Why the ring has ended; None while it is intact."""
        return self._leaving

    def on_abort(self, call: Callable[[str], None]) -> None:
        """Have `call` made with the reason when the ring ends; at once if it has."""
        self._lifeline.on_end(call)

    def longest_wait(self) -> float:
        """Age in seconds of the collective that is being made; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    # --- collectives ---

    def barrier(self) -> None:
        """Wait until every member has come to it."""
        self._run(self._calls.barrier())

    def allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> None:
        """Everybody's `array` joined into one: in place, or in `out`, which may be of another framework.

        Operations are sum, mean, product, min, max, and for integers band, bor, bxor. Numbers of 16 bits are
        added up as float32 and rounded once.
        """
        self._run(self._calls.allreduce(array, operation, out))

    def start_allreduce(self, array: Any, operation: str = "sum", out: Any = None) -> Work[None]:
        return self._start(self._calls.allreduce(array, operation, out))

    def reduce_scatter(self, array: Any, out: Any, operation: str = "sum", counts: Sequence[int] | None = None) -> None:
        """As `allreduce`, but each member gets its own part alone: in `out`. `counts` are the parts' sizes, if they differ."""
        self._run(self._calls.reduce_scatter(array, out, operation, counts))

    def start_reduce_scatter(
        self, array: Any, out: Any, operation: str = "sum", counts: Sequence[int] | None = None
    ) -> Work[None]:
        return self._start(self._calls.reduce_scatter(array, out, operation, counts))

    def allgather(self, array: Any, out: Any = None) -> list[Array]:
        """Everybody's `array` in rank order, flat; their sizes may differ, their type may not.

        `out` is one array for all of them in equal parts, or one for each, of the right sizes; without it fresh ones are
        made, in which bfloat16 is the bits, as uint16.
        """
        return self._run(self._calls.allgather(array, out))

    def start_allgather(self, array: Any, out: Any = None) -> Work[list[Array]]:
        return self._start(self._calls.allgather(array, out))

    def broadcast(self, array: Any, root: int) -> None:
        """Make the `array` of rank `root` everybody's, in place."""
        self._run(self._calls.broadcast(array, root))

    def start_broadcast(self, array: Any, root: int) -> Work[None]:
        return self._start(self._calls.broadcast(array, root))

    def start_barrier(self) -> Work[None]:
        return self._start(self._calls.barrier())

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Everybody's `data` in rank order."""
        return self._run(self._calls.gather_bytes(data))

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The `data` of rank `root`; that of the others does not count."""
        return self._run(self._calls.broadcast_bytes(data, root))

    def gather_objects(self, value: Any) -> list[Any]:
        """Everybody's `value` in rank order: what msgpack can say, that is None, numbers, text, bytes, lists and dicts."""
        return [msgspec.msgpack.decode(each) for each in self.gather_bytes(msgspec.msgpack.encode(value))]

    def broadcast_object(self, value: Any, root: int) -> Any:
        """The `value` of rank `root`, of the same kinds."""
        return msgspec.msgpack.decode(self.broadcast_bytes(msgspec.msgpack.encode(value), root))

    # --- making them ---

    def _run(self, call: Call[T]) -> T:
        return self._turns.run(lambda: self._make(call))

    def _start(self, call: Call[T]) -> Work[T]:
        return self._turns.start(lambda: self._make(call))

    def _make(self, call: Call[T]) -> T:
        """Any failure ends the ring: the neighbours may have bytes of this collective that nobody will make sense of."""
        self._check()
        self._number += 1
        self._began = time.monotonic()
        try:
            with np.errstate(all="ignore"):
                return call(self._lanes, self._number)
        except RingError as error:
            self.abort(str(error))
            raise self._error() from error
        except BaseException as error:
            told = str(error) if isinstance(error, ElasticError) else f"a collective was interrupted: {error!r}"
            self.abort(told)
            raise
        finally:
            self._began = None

    def _check(self) -> None:
        if self._leaving is not None:
            raise self._error()

    def _error(self) -> RingError:
        return RingError(f"{self._lifeline.name}: {self._leaving}")

    def _forming(self, meeting: Meeting | None) -> Call[None]:
        def call(lanes: Lanes | None, number: int) -> None:
            if self.world_size == 1:
                return
            if meeting is None:
                raise RingError("a ring of more than one member needs a meeting point")
            to_next, to_previous = forming.connect(self._place, meeting, self._lifeline)
            self._lanes = Lanes(to_next, to_previous, self._lifeline, self._limit)
            self._number = 0

        return call
