"""Slurm's short ways to write lists: `rack1-n[01-03,7],login` for nodes, `2(x3),1` for numbers."""

from __future__ import annotations

import re

_PARTS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def nodes(text: str) -> list[str]:
    """The names, in order."""
    return [name for part in _PARTS.findall(text) for name in _names(part)]


def numbers(text: str) -> list[int]:
    """Of tasks, for instance, one number a node."""
    return [int(number) for number, times in _REPEATED.findall(text) for _ in range(int(times or 1))]


def _names(part: str) -> list[str]:
    found = _BRACKETS.search(part)
    if found is None:
        return [part]
    before, after = part[: found.start()], _names(part[found.end() :])
    return [f"{before}{number}{rest}" for number in _numbers(found.group(1)) for rest in after]


def _numbers(text: str) -> list[str]:
    """`01-03,7` as 01, 02, 03 and 7."""
    found: list[str] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found
