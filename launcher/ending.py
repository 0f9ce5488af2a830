"""Why and how an agent ends."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ..rendezvous.messages import Exited, Failed
from . import exits

_TRACEBACK = "Traceback (most recent call last)"
_SHORT = 2.0  # seconds that the workers of a failed job have between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Ending:
    """`code` is the agent's exit code, `text` its last words, `tail` the last output of the worker that is the reason.

    The workers that are left get the signal `ask` first, if any, and are killed after `patience` seconds.
    """

    code: int
    text: str
    tail: str = ""
    ask: int | None = None
    patience: float = 0.0

    @staticmethod
    def failed(job: str, message: Failed) -> Ending:
        if message.code == exits.INTERRUPTED:
            text = f"job {job!r} was stopped"
        else:
            text = f"job {job!r} has failed: {message.reason or 'no reason was given'}"
        return Ending(message.code or 1, text, message.tail, signal.SIGTERM, _SHORT)

    @staticmethod
    def rejected(job: str, exited: Exited) -> Ending:
        return Ending(exits.REJECTED, f"none of this agent's workers fits job {job!r}", exited.tail)

    @staticmethod
    def interrupted(text: str) -> Ending:
        return Ending(exits.INTERRUPTED, text)

    def last_words(self) -> str:
        lines = [self.text]
        if self.tail:
            lines += ["last lines of the worker's output:", *("  " + line for line in _what_matters(self.tail))]
        if self.code != exits.SUCCESS:
            lines.append(f"exit code {self.code}")
        return "\n".join(lines)


def _what_matters(tail: str) -> list[str]:
    """From the traceback on, if there is one: what stands before it has been shown, and is no reason."""
    lines = tail.splitlines()
    starts = (number for number, line in enumerate(lines) if _TRACEBACK in line)
    return lines[next(starts, 0) :]
