"""A parser that says which flag was meant when one is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from . import spelling

_ALIKE = 0.6


class Parser(spelling.Parser):
    """As the one that it is made from, but for what it says of flags that it does not know."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return flags

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        hints = {flag: nearest(flag, self._option_string_actions) for flag in unknown}
        told = [f"{flag}: did you mean {hint}?" if hint else flag for flag, hint in hints.items()]
        self.error(f"unrecognized arguments: {', '.join(told)} (--help lists the flags)")


def nearest(flag: str, known: Iterable[str]) -> str:
    """The known flag that is most like this one; empty if none is."""
    if not flag.startswith("-"):
        return ""
    name = _plain(flag.partition("=")[0])
    plain = {_plain(option): option for option in sorted(known)}
    beginning = [option for option in plain if len(name) > 4 and option.startswith(name)]
    like = difflib.get_close_matches(name, plain, n=1, cutoff=_ALIKE)
    best = like or sorted(beginning, key=len)
    return plain[best[0]] if best else ""


def _plain(option: str) -> str:
    return option.lower().replace("_", "-")
