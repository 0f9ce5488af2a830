"""What stands in front of a line on the console: who has written it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

STYLES = ("full", "rank", "none", "time")
_COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # of ranks, one after the other


class Label(NamedTuple):
    """A process whose output is shown. `slot` and `rank` are -1 where there is none; `name` is that of one that is no worker."""

    host: str
    slot: int = -1
    generation: int = 0
    rank: int = -1
    name: str = ""


PASSED_ON = Label("")
"""Of an agent on another host, whose lines have prefixes already."""


def in_style(label: Label, style: str) -> str:
    """`style` is one of STYLES."""
    if style == "none" or label == PASSED_ON:
        return ""
    who = f"r{label.rank}" if label.generation else f"w{label.slot}"
    if style == "rank":
        return f"[{label.name or who}] "
    time_of_day = _time_of_day() if style == "time" else ""
    return f"{time_of_day}[{label.name or f'g{label.generation} {who} {label.host}'}] "


def agents_own(host: str, style: str) -> str:
    """In front of what the agent itself says, in every style: else nobody could tell it from the script's."""
    return f"{_time_of_day() if style == 'time' else ''}[elastic-launch {host}] "


def coloured(prefix: str, label: Label) -> str:
    """For a terminal: a colour of its own for each rank."""
    if not prefix:
        return ""
    number = label.rank if label.generation else label.slot
    return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{prefix[:-1]}\x1b[0m "


def bold(prefix: str) -> str:
    """For a terminal: the agent's own lines."""
    return f"\x1b[1m{prefix[:-1]}\x1b[0m "


def wants_colour(descriptor: int, environ: Mapping[str, str]) -> bool:
    """On a terminal that can show it, unless NO_COLOR (no-color.org) is set."""
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _time_of_day() -> str:
    now = time.time()
    return time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d} "
