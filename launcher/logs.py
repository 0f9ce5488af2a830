"""The package's log records among the agent's own lines."""

from __future__ import annotations

import logging

from ..errors import UsageError
from .reporter import Reporter

_PACKAGE = "elastic_launch"
_LEVELS = {
    "TRACE": 1,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""By the names that --log-level takes."""


def level_of(name: str) -> int:
    """UsageError for a name of no level."""
    if name.upper() not in _LEVELS:
        raise UsageError(f"{name!r} is no level: give one of {', '.join(_LEVELS)}")
    return _LEVELS[name.upper()]


def show_log(reporter: Reporter, level: int) -> logging.Handler:
    """From here on `reporter` says what the parts of this package log at `level` or above. Returns what shows it."""
    handler = ReporterHandler(reporter)
    handler.setLevel(level)
    logger = logging.getLogger(_PACKAGE)
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.WARNING))
    return handler


class ReporterHandler(logging.Handler):
    """Records as lines of the agent's own."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        self._reporter.say(f"{record.levelname.lower()}: {self.format(record)}")
