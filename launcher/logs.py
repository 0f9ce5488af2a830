"""The package's log records among the agent's own lines; with --verbose, each message of the protocol as well."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ..rendezvous.messages import Message
from .reporter import Reporter

_PACKAGE = "elastic_launch"
_LONGEST = 200  # characters of one value
_protocol = logging.getLogger(f"{_PACKAGE}.launcher.protocol")


class ReporterHandler(logging.Handler):
    """Shows warnings and errors of the parts that the agent uses; `verbose`, everything."""

    def __init__(self, reporter: Reporter, verbose: bool = False) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._reporter = reporter
        if verbose:
            logging.getLogger(_PACKAGE).setLevel(logging.DEBUG)

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
