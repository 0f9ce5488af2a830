"""The package's log records among the agent's own lines."""

from __future__ import annotations

import logging

from .reporter import Reporter


class ReporterHandler(logging.Handler):
    """Shows warnings and errors of the parts that the agent uses."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        self._reporter.say(f"{record.levelname.lower()}: {self.format(record)}")
