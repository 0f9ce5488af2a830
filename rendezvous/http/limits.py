"""What one client may ask of the server, so that a broken or hostile one harms nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...errors import UsageError
from ..messages import Beat, Broken, Exited, Hello, Started, Stop, ToServer


@dataclass(frozen=True)
class Limits:
    """Sizes are bytes of text as it is sent, or of a message."""

    message: int = 1024 * 1024  # an agent's message
    body: int = 64 * 1024  # a request's body
    jobs: int = 1000  # of this server
    keep_finished: float = 60.0  # seconds for which an ended job is still shown, and its name is not free
    agents: int = 10_000  # of a job
    workers: int = 1024  # of an agent
    rate: float = 200.0  # messages a second that an agent may send for ever
    burst: int = 10_000  # messages that it may send at once
    streams: int = 200  # readers that follow the events of jobs
    reason: int = 2000  # characters of a reason; the rest is cut off
    tail: int = 32_000  # characters of a worker's last output; the older ones are cut off


class TokenBucket:
    """Lets `rate` a second through, and `burst` at once after a rest."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def within(message: ToServer, limits: Limits) -> ToServer:
    """The message, its texts cut to their limits. UsageError for one that no agent within its limits sends."""
    if isinstance(message, Hello):
        _check_count(message.workers, limits)
        for claim in message.workers:
            _check_slot(claim.local_rank, limits)
    elif isinstance(message, Beat):
        _check_count(message.progress, limits)
    elif isinstance(message, Started):
        _check_slot(message.local_rank, limits)
    elif isinstance(message, Exited):
        _check_slot(message.local_rank, limits)
        reason, tail = _line(message.reason, limits), message.tail[-limits.tail :]
        if (reason, tail) != (message.reason, message.tail):
            return msgspec.structs.replace(message, reason=reason, tail=tail)
    elif isinstance(message, (Broken, Stop)) and _line(message.reason, limits) != message.reason:
        return msgspec.structs.replace(message, reason=_line(message.reason, limits))
    return message


def _check_count(workers: Sequence[object], limits: Limits) -> None:
    if len(workers) > limits.workers:
        raise UsageError(f"{len(workers)} workers: an agent may have {limits.workers} at most")


def _check_slot(local_rank: int, limits: Limits) -> None:
    if local_rank >= limits.workers:
        raise UsageError(f"slot {local_rank}: an agent may have {limits.workers} workers at most")


def _line(reason: str, limits: Limits) -> str:
    """In one line, as it comes to stand in a log."""
    return "".join(letter if letter.isprintable() else " " for letter in reason[: limits.reason])
