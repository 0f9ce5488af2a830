"""The package's log records among the agent's own lines; with --verbose, each message of the protocol as well."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ..errors import UsageError
from ..rendezvous.messages import Message
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
_LONGEST = 200  # characters of one value
_protocol = logging.getLogger(f"{_PACKAGE}.launcher.protocol")


def level_of(name: str) -> int:
    """UsageError for a name of no level."""
    if name.upper() not in _LEVELS:
        raise UsageError(f"{name!r} is no level: give one of {', '.join(_LEVELS)}")
    return _LEVELS[name.upper()]


class ReporterHandler(logging.Handler):
    """Shows what the parts of this package log at `level` or above; at DEBUG the protocol, too. From `__init__` on."""

    def __init__(self, reporter: Reporter, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._reporter = reporter
        logger = logging.getLogger(_PACKAGE)
        logger.addHandler(self)
        logger.setLevel(min(level, logging.WARNING))

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() if record.name == _protocol.name else self._with_its_level(record)
        self._reporter.say(text)

    def _with_its_level(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {self.format(record)}"


def show(sender: str, receiver: str, message: Message) -> None:
    """One line for one message, if the protocol is to be shown."""
    if _protocol.isEnabledFor(logging.DEBUG):
        _protocol.debug("%s -> %s: %s", sender, receiver, in_one_line(message))


def in_one_line(message: Message) -> str:
    """Its type and what it says that is not the default; no secrets."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    name = fields.pop("type")
    if "secret" in fields:
        fields["secret"] = "…"
    return " ".join([name, *(f"{field}={_shortened(value)}" for field, value in fields.items())])


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) and " " not in value and value else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
