"""The keys of one generation, and who waits for them: plain data, no sockets, no clock.

A request is answered through the callback that comes with it, at once or when what it waits for has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .messages import (
    MAX_FRAME,
    MAX_KEYS,
    Add,
    Append,
    Check,
    CompareSet,
    CountKeys,
    Delete,
    Denied,
    Gather,
    Get,
    Key,
    Reply,
    Set,
    TimedOut,
    Value,
    Wait,
)

Answer = Callable[[Reply], None]
KeyRequest = Set | Get | Wait | Add | Append | CompareSet | Check | Delete | CountKeys | Gather


class Pending(Protocol):
    """A request that waits. Exactly one of its answer, `expire` and `cancel` ends it."""

    def expire(self) -> None:
        """The request's time is over: it is answered with what is missing."""

    def cancel(self) -> None:
        """Whoever asked is gone: no answer."""


class GenerationKeys:
    def __init__(self) -> None:
        self._values: dict[Key, bytes] = {}
        self._waiting: dict[Key, set[_KeyWait]] = {}
        self._gathers: dict[Key, _GatherRound] = {}

    def ask(self, request: KeyRequest, answer: Answer) -> Pending | None:
        """Answers the request, or returns it as one that waits."""
        if isinstance(request, (Get, Wait)):
            return self._wait(request, answer)
        if isinstance(request, Gather):
            return self._gather(request, answer)
        answer(self._answer_at_once(request))
        return None

    def _answer_at_once(self, request: Set | Add | Append | CompareSet | Check | Delete | CountKeys) -> Reply:
        if isinstance(request, Check):
            return Value(all(key in self._values for key in request.keys))
        if isinstance(request, Delete):
            return Value(self._values.pop(request.key, None) is not None)
        if isinstance(request, CountKeys):
            return Value(len(self._values))
        held = self._values.get(request.key)
        if held is None and len(self._values) >= MAX_KEYS:
            return Denied(f"this generation already holds {MAX_KEYS} keys")
        if isinstance(request, Set):
            self._put(request.key, request.value)
            return Value()
        if isinstance(request, CompareSet):
            return Value(self._compare_set(request, held))
        if isinstance(request, Append):
            if len(held or b"") + len(request.value) > MAX_FRAME:
                return Denied(f"key {request.key!r} would hold more than {MAX_FRAME} bytes")
            self._put(request.key, (held or b"") + request.value)
            return Value()
        try:
            total = int(held or b"0") + request.amount
        except ValueError:
            return Denied(f"key {request.key!r} holds {(held or b'')[:40]!r}, which is not a number to add to")
        self._put(request.key, b"%d" % total)
        return Value(total)

    def _compare_set(self, request: CompareSet, held: bytes | None) -> bytes:
        """As `torch.distributed.Store`: an absent key equals an empty `expected`, and is otherwise left absent."""
        if held is None and request.expected:
            return request.expected
        if held is not None and held != request.expected:
            return held
        self._put(request.key, request.desired)
        return request.desired

    def _put(self, key: Key, value: bytes) -> None:
        self._values[key] = value
        for wait in self._waiting.pop(key, ()):
            wait.missing.discard(key)
            if not wait.missing:
                wait.answer(self._found(wait.request))

    def _found(self, request: Get | Wait) -> Reply:
        return Value() if isinstance(request, Wait) else Value([self._values[key] for key in request.keys])

    def _wait(self, request: Get | Wait, answer: Answer) -> Pending | None:
        missing = {key for key in request.keys if key not in self._values}
        if not missing:
            answer(self._found(request))
            return None
        wait = _KeyWait(request, answer, missing, self._waiting)
        for key in missing:
            self._waiting.setdefault(key, set()).add(wait)
        return wait

    def _gather(self, request: Gather, answer: Answer) -> Pending | None:
        this_round = self._gathers.get(request.name) or _GatherRound(request.world_size)
        refusal = this_round.refusal(request)
        if refusal:
            answer(Denied(refusal))
            return None
        self._gathers[request.name] = this_round
        pending = this_round.give(request, answer)
        if this_round.served == request.world_size:
            del self._gathers[request.name]
        return pending


@dataclass(eq=False)
class _KeyWait:
    request: Get | Wait
    answer: Answer
    missing: set[Key]
    waiting: dict[Key, set[_KeyWait]]

    def expire(self) -> None:
        missing = [key for key in self.request.keys if key in self.missing]
        self.cancel()
        self.answer(TimedOut([*missing]))

    def cancel(self) -> None:
        for key in self.missing:
            others = self.waiting.get(key)
            if others is not None:
                others.discard(self)
                if not others:
                    del self.waiting[key]


@dataclass(eq=False)
class _GatherRound:
    """All ranks' values under one name. A rank whose time was over may ask again; one that has been served may not."""

    world_size: int
    values: dict[int, bytes] = field(default_factory=dict)
    waiting: dict[int, Answer] = field(default_factory=dict)
    has_been_served: set[int] = field(default_factory=set)

    @property
    def served(self) -> int:
        return len(self.has_been_served)

    def refusal(self, request: Gather) -> str:
        if request.world_size != self.world_size:
            return (
                f"gather {request.name!r} is of {self.world_size} ranks, "
                f"rank {request.rank} takes it for {request.world_size}"
            )
        if not 0 <= request.rank < self.world_size:
            return f"gather {request.name!r} is of {self.world_size} ranks, there is no rank {request.rank}"
        if request.rank in self.waiting or request.rank in self.has_been_served:
            return f"gather {request.name!r} has rank {request.rank}'s value already"
        size = sum(len(value) for rank, value in self.values.items() if rank != request.rank) + len(request.value)
        if size > MAX_FRAME - 16 * self.world_size - 64:
            return f"gather {request.name!r} would hold more than {MAX_FRAME} bytes"
        return ""

    def give(self, request: Gather, answer: Answer) -> Pending | None:
        if len(self.values) < self.world_size:
            self.values[request.rank] = request.value
        self.waiting[request.rank] = answer
        if len(self.values) < self.world_size:
            return _GatherWait(self, request.rank)
        everything = Value([self.values[rank] for rank in range(self.world_size)])
        self.has_been_served.update(self.waiting)
        answers, self.waiting = list(self.waiting.values()), {}
        for waiting in answers:
            waiting(everything)
        return None


@dataclass(eq=False)
class _GatherWait:
    round: _GatherRound
    rank: int

    def expire(self) -> None:
        answer = self.round.waiting.pop(self.rank)
        missing: Sequence[int] = [rank for rank in range(self.round.world_size) if rank not in self.round.values]
        answer(TimedOut([*missing]))

    def cancel(self) -> None:
        self.round.waiting.pop(self.rank, None)
