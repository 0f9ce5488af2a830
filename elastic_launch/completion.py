"""Completion of a command line in shells: a script for the shell is printed, which has every flag and file in it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

SHELLS = ("bash", "zsh", "fish", "tcsh")
# In shtab's words, for each shell.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "__fish_complete_path", "tcsh": "f"}
_FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "fish": "__fish_complete_directories", "tcsh": "d"}
_BY_METAVAR = {"F": _FILES, "FILE": _FILES, "DIR": _FOLDERS}
_BY_NAME = {"script": _FILES, "args": _FILES}


class PrintCompletion(argparse.Action):
    """`--print-completion SHELL`, of the whole command line that `whole` parses. Values named F, FILE or DIR are files."""

    def __init__(self, *arguments: Any, whole: argparse.ArgumentParser, **options: Any) -> None:
        super().__init__(
            *arguments,
            **{
                "metavar": "SHELL",
                "choices": SHELLS,
                "default": argparse.SUPPRESS,
                "help": f"print the completion of this command for {', '.join(SHELLS[:-1])} or {SHELLS[-1]}, and exit",
                **options,
            },
        )
        self._whole = whole

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        import shtab  # by those alone who ask for it: an agent starts in a fraction of a second

        _mark_files(self._whole)
        print(shtab.complete(self._whole, shell=str(values)))
        parser.exit()


def _mark_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark_files(command)
        kind = _BY_METAVAR.get(str(action.metavar)) or _BY_NAME.get(action.dest)
        if kind is not None and not hasattr(action, "complete"):
            action.complete = kind  # type: ignore[attr-defined]
