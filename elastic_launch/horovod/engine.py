"""The thread that talks to the other members about what each has asked for, and makes what all have.

A round is one small exchange. A member goes into one when it has something to tell, or waits for others; so whoever is in a
round is met there at the latest by the next thing that the others ask for. Nobody polls while there is nothing to do.

All members leave a round with the same: what is to be made, and whether to give up. A clock is one member's own, so what it
says is told in a round too; one that gave up alone would leave the others in the next round without it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter

import msgspec

from ..errors import ElasticError, RingError
from .common.exceptions import HorovodInternalError, MismatchError
from .negotiating import Table
from .operation import Operation
from .performing import FUSION_LIMIT, Carrier, Performer
from .requests import Request

STALL_WARNING = 60.0  # seconds without anything that could be made, until that is said
STALL_LIMIT = 300.0  # and until it is an error
_PAUSE = 0.002  # seconds between two rounds in which nobody told anything: the members ask in different orders


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What one member tells in a round."""

    requests: list[Request]  # those that it has not told yet
    is_out_of_patience: bool = False  # by its own clock, the members have waited for each other for too long


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Word).decode


class Engine:
    """Of one ring, from its forming to its end. `ask` may be called from any thread."""

    def __init__(
        self,
        ring: Carrier,
        rank: int,
        size: int,
        stall_limit: float = STALL_LIMIT,
        fusion_limit: int = FUSION_LIMIT,
    ) -> None:
        """`fusion_limit` (bytes) is the same on all members; `stall_limit` (seconds) need not be."""
        self._stall_limit = stall_limit
        self._stall_since: float | None = None
        self._stall_told = False
        self.rank = rank
        self.size = size
        self._ring = ring
        self._performer = Performer(ring, rank, size, fusion_limit)
        self._table = Table(size)
        self._changed = threading.Condition()
        self._untold: list[Operation] = []
        self._own: dict[str, Operation] = {}
        self._numbers: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def ask(self, operation: Operation) -> Operation:
        """Start it. Raises `HorovodInternalError` if the ring is broken."""
        name = operation.request.name
        with self._changed:
            if self._failure is not None:
                raise HorovodInternalError(str(self._failure))
            if name in self._own:
                raise MismatchError(
                    f"{name!r} has been asked for, and is not over: give each collective that is under way another name"
                )
            self._own[name] = operation
            self._untold.append(operation)
            if self.size > 1:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="horovod-engine", daemon=True)
                    self._thread.start()
                self._changed.notify()
        if self.size == 1:
            self._make_alone(operation)
        return operation

    def name(self, kind: str) -> str:
        """For a collective without one: the same on all members if they ask for such in the same order."""
        with self._changed:
            self._numbers[kind] += 1
            return f"{kind}.noname.{self._numbers[kind]}"

    def fail(self, error: BaseException) -> None:
        """The ring has ended: everything that is under way, or asked for from here on, fails. From any thread.

        What is being made fails when the ring has let go of its memory, so that whoever waits for it may use that.
        """
        with self._changed:
            if self._failure is None:
                self._failure = error
            is_run = self._thread is not None
            self._changed.notify()
        if not is_run:
            self._fail_all()

    def end(self) -> bool:
        """No more of it. Whether nothing was under way; else the ring must be aborted, which ends that."""
        with self._changed:
            is_idle = not self._own
        self.fail(RingError("this generation's ring has ended"))
        return is_idle

    def _fail_all(self) -> None:
        with self._changed:
            own, self._own, self._untold = list(self._own.values()), {}, []
        for operation in own:
            operation.end(self._failure)

    def _run(self) -> None:
        told_nothing = False
        while True:
            with self._changed:
                if told_nothing and not self._untold and self._failure is None:
                    self._changed.wait(_PAUSE)
                while not self._own and self._failure is None:
                    self._changed.wait()  # for as long as this ring lives: it ends with it
                if self._failure is not None:
                    break
                untold, self._untold = self._untold, []
                own = dict(self._own)
            try:
                told_nothing = self._round(untold, own)
            except RingError as error:
                self.fail(error)
            except BaseException as error:  # whoever waits must hear of it
                self.fail(error if isinstance(error, ElasticError) else RingError(f"the engine failed: {error!r}"))
        self._fail_all()

    def _round(self, untold: list[Operation], own: dict[str, Operation]) -> bool:
        """Whether nobody had told anything."""
        word = Word([operation.request for operation in untold], self._waited() >= self._stall_limit)
        told = [_decode(each) for each in self._ring.gather_bytes(_encode(word))]
        told_nothing = not any(each.requests for each in told)
        if not told_nothing:
            self._stall_since, self._stall_told = None, False
        elif any(each.is_out_of_patience for each in told):
            raise MismatchError(f"{self._stall()}. All members must make the same collectives")
        else:
            self._warn_of_stall()
        self._performer.make(self._table.take([each.requests for each in told]), own, self._over)
        return told_nothing

    def _waited(self) -> float:
        """Seconds for which nobody has told anything."""
        return 0.0 if self._stall_since is None else time.monotonic() - self._stall_since

    def _warn_of_stall(self) -> None:
        if self._stall_since is None:
            self._stall_since = time.monotonic()
        if self._waited() >= STALL_WARNING and not self._stall_told:
            self._stall_told = True
            print(f"elastic: {self._stall()} (for {self._waited():.0f} s)", file=sys.stderr, flush=True)

    def _stall(self) -> str:
        awaited = "; ".join(f"{name}: {', '.join(map(str, ranks))}" for name, ranks in self._table.awaited().items())
        return f"the members wait for each other: these ranks have not asked for what the others have: {awaited}"

    def _over(self, operation: Operation, error: BaseException | None) -> None:
        """Its name is free before whoever waits for it can ask for the next one."""
        operation.last_joined = self._table.last_joined
        with self._changed:
            self._own.pop(operation.request.name, None)
        operation.end(error)

    def _make_alone(self, operation: Operation) -> None:
        with self._changed:
            self._untold.clear()
        try:
            ready = self._table.take([[operation.request]])
            self._performer.make(ready, {operation.request.name: operation}, self._over)
        except RingError as error:
            self.fail(error)
