"""Which collectives all members have asked for, and in which order they are made: a pure decision, the same on every member.

The hooks of two members need not fire in the same order, and one may ask for what another has not come to. So in rounds
the members tell each other what they have asked for since the last one, and each keeps the same table of it. What all have
asked for is made, in the order in which the table says that it became complete.

A member that has joined (it has no more data) counts as asking for every reduction, to which it gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .requests import Request

JOIN = "join"  # the name, and the kind, of the request of a member that has no more data
_WITH_JOINED = ("allreduce", "allgather", "barrier")


@dataclass(frozen=True)
class Ready:
    """What is to be made. `requests` by rank; None of a member that has joined. `error`: it cannot be made, on any member."""

    name: str
    requests: Sequence[Request | None]
    error: str = ""

    @property
    def first(self) -> Request:
        return next(request for request in self.requests if request is not None)


@dataclass
class Table:
    """The state of one ring's negotiation, the same on every member after each round."""

    size: int
    _asked: dict[str, dict[int, Request]] = field(default_factory=dict)
    _joined: dict[int, Request] = field(default_factory=dict)
    last_joined: int = -1

    def take(self, told: Sequence[Sequence[Request]]) -> list[Ready]:
        """What is ready after a round in which each rank has told these requests."""
        for rank, requests in enumerate(told):
            for request in requests:
                if request.kind == JOIN:
                    self._joined[rank] = request
                    self.last_joined = rank
                else:
                    self._asked.setdefault(request.name, {})[rank] = request
        ready = [self._pop(name) for name in [name for name in self._asked if self._is_complete(name)]]
        if len(self._joined) == self.size and not self._asked:
            ready.append(Ready(JOIN, [self._joined[rank] for rank in range(self.size)]))
            self._joined = {}
        return ready

    def awaited(self) -> dict[str, list[int]]:
        """By name, the ranks that have not asked for it, or, of a join, have not joined."""
        waiting = {
            name: [rank for rank in range(self.size) if rank not in asked and rank not in self._joined]
            for name, asked in self._asked.items()
        }
        if self._joined:
            waiting[JOIN] = [rank for rank in range(self.size) if rank not in self._joined]
        return waiting

    def _is_complete(self, name: str) -> bool:
        asked = self._asked[name]
        return all(rank in asked or rank in self._joined for rank in range(self.size))

    def _pop(self, name: str) -> Ready:
        asked = self._asked.pop(name)
        requests = [asked.get(rank) for rank in range(self.size)]
        return Ready(name, requests, _error(name, requests))


def _error(name: str, requests: Sequence[Request | None]) -> str:
    given = {rank: request for rank, request in enumerate(requests) if request is not None}
    first_rank, first = next(iter(given.items()))
    for rank, request in given.items():
        difference = first.explain(request)
        if difference:
            return f"ranks {first_rank} and {rank} do not agree about {name!r}: {difference}"
    if len(given) < len(requests) and first.kind not in _WITH_JOINED:
        joined = next(rank for rank, request in enumerate(requests) if request is None)
        return f"rank {joined} has joined, and cannot take part in the {first.kind} {name!r}: only reductions and gathers go on"
    return ""
