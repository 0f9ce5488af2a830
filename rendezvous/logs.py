"""The server's log: lines for people, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from .membership.effects import Event

FORMATS = ("text", "json")
_FIELDS = ("asctime", "levelname", "name", "message")


def configure(level: str, form: str = "text") -> None:
    """`level` as logging names it; `form` one of FORMATS. To standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        from pythonjsonlogger.json import JsonFormatter

        handler.setFormatter(
            JsonFormatter(
                list(_FIELDS),
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
                datefmt="%Y-%m-%dT%H:%M:%S%z",
            )
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level.lower() != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # it tells of every connection


def about(job: str, event: Event | None = None, agent: str = "") -> Mapping[str, Any]:
    """What a record is about, to be given as its `extra`: only what is known."""
    known: dict[str, Any] = {"job": job}
    if agent:
        known["agent"] = agent
    if event is not None:
        known["event"] = event.kind
        known |= {name: event.fields[name] for name in ("generation", "agent", "worker") if name in event.fields}
    return known
