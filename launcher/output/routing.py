"""Which streams of which workers go to the console, and which to files. The words are torchrun's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag

from ...errors import UsageError

_NUMBER = re.compile(r"[0123]")
_MAPPING = re.compile(r"(\d+:[0123],)*\d+:[0123]")


class Streams(IntFlag):
    """Standard output, standard error, both or none: what the numbers 0 to 3 stand for."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


Choice = Streams | Mapping[int, Streams]  # for all workers, or by slot (torchrun's local rank): none for those left out


@dataclass(frozen=True)
class Route:
    """`duplicate`: its lines are also looked through for those that go into the file for lines of all workers."""

    console: bool
    file: bool
    duplicate: bool


@dataclass(frozen=True)
class Routing:
    """None: not asked for. With neither `redirects` nor `tee`, everything goes to both, where there are files at all."""

    redirects: Choice | None = None
    tee: Choice | None = None
    slots_shown: frozenset[int] | None = None

    @property
    def needs_files(self) -> bool:
        """Whether somebody has asked for files."""
        return any(_asks_for_something(choice) for choice in (self.redirects, self.tee))

    def route(self, slot: int, stream: Streams) -> Route:
        """Of a worker's one stream. What is no worker's (`slot` -1) goes to the console."""
        if slot < 0:
            return Route(console=True, file=False, duplicate=False)
        shown = self.slots_shown is None or slot in self.slots_shown
        if self.redirects is None and self.tee is None:
            return Route(console=shown, file=True, duplicate=shown)
        teed = bool(_chosen(self.tee, slot) & stream)
        redirected = bool(_chosen(self.redirects, slot) & stream)
        return Route(console=shown and (teed or not redirected), file=teed or redirected, duplicate=shown and teed)


def parse_choice(text: str) -> Choice:
    """ "3" for both streams of all workers, "0:1,1:2" for standard output of slot 0 and standard error of slot 1. UsageError."""
    if _NUMBER.fullmatch(text):
        return Streams(int(text))
    if _MAPPING.fullmatch(text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(slot): Streams(int(number)) for slot, number in pairs}
    raise UsageError(
        "give 0 (neither), 1 (standard output), 2 (standard error) or 3 (both) for all workers, or one for each local rank,"
        " as in 0:1,1:2"
    )


def parse_slots(text: str) -> frozenset[int]:
    """ "0,2". UsageError."""
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError("give local ranks with commas between them, as in 0,1,2") from None


def parse_filters(text: str) -> tuple[str, ...]:
    """Commas separate; two of them stand for one that is meant."""
    parts = (part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    return tuple(part for part in parts if part)


def _chosen(choice: Choice | None, slot: int) -> Streams:
    if choice is None:
        return Streams.NONE
    return choice if isinstance(choice, Streams) else choice.get(slot, Streams.NONE)


def _asks_for_something(choice: Choice | None) -> bool:
    if choice is None:
        return False
    return any([choice] if isinstance(choice, Streams) else choice.values())
