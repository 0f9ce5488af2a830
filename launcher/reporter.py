"""What the agent itself says to people, on its standard error, in order with its workers' lines."""

from __future__ import annotations

from pathlib import Path

from .output.log_folders import host_folder
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


def make_reporter(output: Output, log_dir: Path | None, job: str, host: str) -> Reporter:
    """With a log of its own where there is a folder for logs."""
    if log_dir is None:
        return Reporter(output, host)
    try:
        folder = host_folder(log_dir, job, host)
        reporter = Reporter(output, host, output.open_common_log(folder / "agent.log"))
        reporter.say(f"logs are in {folder}")
    except OSError as error:
        reporter = Reporter(output, host)
        reporter.say(f"warning: no log of this agent's own can be written: {error}")
    return reporter
