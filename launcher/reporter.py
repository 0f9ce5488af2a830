"""What the agent itself says to people, on its standard error, in order with its workers' lines."""

from __future__ import annotations

from .output.room import Output
from .output.sinks import LogFile


class Reporter:
    """Lines with the agent's own prefix, also written to `log` if there is one."""

    def __init__(self, output: Output, host: str, log: LogFile | None = None) -> None:
        self._output = output
        self._host = host
        self._log = log
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """`text` may have several lines."""
        self._output.say(self._host, text, self._log)

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)
