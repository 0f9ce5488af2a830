"""What the agent itself says to people, on its standard error, in order with its workers' lines."""

from __future__ import annotations

from .output import OutputThread

STDERR = 2


class Reporter:
    """Lines with the agent's own prefix."""

    def __init__(self, output: OutputThread, host: str) -> None:
        self._output = output
        self._prefix = f"[elastic-launch {host}] "
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """`text` may have several lines."""
        lines = [self._prefix + line + "\n" for line in text.splitlines()]
        self._output.write(STDERR, "".join(lines).encode(errors="backslashreplace"))

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)
