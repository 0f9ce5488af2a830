"""What was said, read as numbers, seconds and choices. Everything that cannot work ends with a message and exit code 2."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from ...errors import UsageError
from ..flags.words import Said, Words, count, is_on

T = TypeVar("T")


class Asked:
    """Every method ends in SystemExit where a value cannot work."""

    def __init__(
        self, parser: argparse.ArgumentParser, flags: argparse.Namespace, words: Words, environ: Mapping[str, str]
    ) -> None:
        self._parser = parser
        self.flags = flags
        self.words = words
        self.environ = environ

    def fail(self, message: str) -> NoReturn:
        self._parser.error(message)

    def said(self, name: str) -> Said | None:
        return self.words.get(name)

    def text(self, name: str, default: str = "") -> str:
        given = self.said(name)
        return default if given is None else given.value

    def understood(self, call: Callable[[], T], where: str = "") -> T:
        """What `call` returns; its `UsageError` is the end."""
        try:
            return call()
        except UsageError as error:
            self.fail(f"{where}: {error}" if where else str(error))

    def read(self, name: str, reader: Callable[[str], T], default: T) -> T:
        """What `reader` makes of the text; errors of it name where the text was said."""
        given = self.said(name)
        return default if given is None else self.understood(lambda: reader(given.value), given.where)

    def count(self, name: str, least: int, default: int) -> int:
        given = self.said(name)
        if given is None:
            return default
        return self.understood(lambda: count(given, least))

    def seconds(self, name: str, default: float) -> float:
        given = self.said(name)
        if given is None:
            return default
        try:
            seconds = float(given.value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{given.where} is {given.value!r}: give a number of seconds above 0")
        return seconds

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """The first is the default."""
        given = self.said(name)
        if given is None:
            return choices[0]
        if given.value not in choices:
            self.fail(f"{given.where} is {given.value!r}: give {', '.join(choices[:-1])} or {choices[-1]}")
        return given.value

    def is_on(self, name: str) -> bool:
        given = self.said(name)
        if given is None:
            return False
        try:
            return is_on(given.value)
        except UsageError as error:
            self.fail(f"{given.where} {error}")
