"""Signals by name, as a flag gives them."""

from __future__ import annotations

import signal

from ..errors import UsageError

DRAINING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)
_TAKEN = (signal.SIGCHLD, signal.SIGPIPE)


def draining_signals(text: str) -> tuple[int, ...]:
    """Signals on which an agent's workers leave: those named in `text` (with commas between them), but SIGINT, which stops
    the job whether it is named or not. UsageError if one is none, or cannot be handled."""
    found = []
    for name in filter(None, (part.strip().upper() for part in text.split(","))):
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if not isinstance(number, signal.Signals):
            raise UsageError(f"{name!r} is no signal: give names such as SIGTERM,SIGUSR1 (`kill -l` lists them)")
        if number in _UNCATCHABLE or number in _TAKEN:
            raise UsageError(f"{number.name} cannot be handled: leave it out")
        if number is not signal.SIGINT and number not in found:
            found.append(number)
    return tuple(int(number) for number in found)
