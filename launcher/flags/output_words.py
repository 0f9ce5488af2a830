"""What was said of the output, made into settings."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from ...errors import UsageError
from ..output.prefixes import STYLES
from ..output.routing import Routing, parse_choice, parse_filters, parse_slots
from ..output.settings import OutputSettings
from .words import Said, Words, whole_number

NAMES = (
    "log_dir", "log_max_size", "log_files", "prefix", "verbose", "quiet",
    "redirects", "tee", "local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters",
)  # fmt: skip

_SIZE = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Fail = Callable[[str], NoReturn]
T = TypeVar("T")


def output_settings(words: Words, fail: Fail, folds_tracebacks: bool = True) -> OutputSettings:
    """`fail` is called with a message that says what to do."""
    defaults = OutputSettings()
    routing = Routing(
        _parsed(words.get("redirects"), parse_choice, None, fail),
        _parsed(words.get("tee"), parse_choice, None, fail),
        _parsed(words.get("local_ranks_filter"), parse_slots, None, fail),
    )
    no_filters: tuple[str, ...] = ()
    filters = {
        stream: _parsed(words.get(f"duplicate_{name}_filters"), parse_filters, no_filters, fail)
        for stream, name in ((1, "stdout"), (2, "stderr"))
    }
    return OutputSettings(
        prefix=_parsed(words.get("prefix"), _style, defaults.prefix, fail),
        routing=routing,
        most_bytes=_parsed(words.get("log_max_size"), _size, defaults.most_bytes, fail),
        files=_parsed(words.get("log_files"), whole_number, defaults.files, fail),
        duplicates={stream: texts for stream, texts in filters.items() if texts},
        folds_tracebacks=folds_tracebacks,
    )


def log_folder(words: Words, settings: OutputSettings, fail: Fail) -> Path | None:
    """Made if it is not there. Where files were asked for without saying where, a folder of its own, as torchrun does."""
    given = words.get("log_dir")
    if given is None or not given.value:
        needed = settings.routing.needs_files or settings.duplicates
        return Path(tempfile.mkdtemp(prefix="elastic_launch_")) if needed else None
    if given.value == os.devnull:
        return None
    folder, where = Path(given.value), given.where
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{where} is {given.value!r}, which cannot be used: {error.strerror}. Give a folder, or a name for one")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(
            f"{where} is {given.value!r}, which cannot be written to: give another folder, or the right to write to it"
        )
    return folder.absolute()


def _parsed(said: Said | None, parse: Callable[[str], T], default: T, fail: Fail) -> T:
    if said is None:
        return default
    try:
        return parse(said.value)
    except UsageError as error:
        fail(f"{said.where} is {said.value!r}: {error}")


def _style(text: str) -> str:
    if text not in STYLES:
        raise UsageError(f"give {', '.join(STYLES[:-1])} or {STYLES[-1]}")
    return text


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError("give a number of bytes, as in 500000, 100M or 1G, or 0 for no limit")
    return int(match[1]) * _FACTORS[match[2].lower()]
