"""A parser that says which flag was meant when one is not known."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_ALIKE = 0.6


class Parser(argparse.ArgumentParser):
    """As argparse's, but for what it says of flags that it does not know. Its commands are parsers of this kind too."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._command_of(flags).refuse(unknown)
        return flags

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends with exit code 2."""
        hints = {flag: nearest(flag, self._option_string_actions) for flag in unknown}
        told = [f"{flag}: did you mean {hint}?" if hint else flag for flag, hint in hints.items()]
        self.error(f"unrecognized arguments: {', '.join(told)} (--help lists the flags)")

    def _command_of(self, flags: argparse.Namespace) -> Parser:
        """The command that was chosen, where there are several: it knows other flags."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                chosen = action.choices.get(str(getattr(flags, action.dest, "")))
                if isinstance(chosen, Parser):
                    return chosen
        return self


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
