"""What was said of the job, whoever's words it was said in: values under the names of this launcher's own flags."""

from __future__ import annotations

import argparse
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import UsageError

_DIGITS = 19  # of a number that 64 bits can hold
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Said(NamedTuple):
    """The value as written, and where: a flag or a variable, as it is to be named in an error."""

    value: str
    where: str


Words = Mapping[str, Said]  # by the own flag's name with underscores, such as "nproc_per_node"


def from_flags(flags: argparse.Namespace, names: Sequence[str]) -> dict[str, Said]:
    """Those that were given, of the flags that there are: some words are only said by other launchers' flags."""
    given = {name: getattr(flags, name, None) for name in names}
    return {name: Said(str(value), flag_of(name)) for name, value in given.items() if value is not None}


def from_variables(environ: Mapping[str, str], names: Sequence[str], prefix: str = "ELASTIC_") -> dict[str, Said]:
    """Those that a variable says; an empty one says nothing."""
    variables = {name: prefix + name.upper() for name in names}
    return {name: Said(environ[variable], variable) for name, variable in variables.items() if environ.get(variable)}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_on(value: str) -> bool:
    """Of a switch that a variable sets. UsageError if it says neither yes nor no."""
    if value.lower() not in _SWITCH:
        raise UsageError(f"is {value!r}: give 1 or 0")
    return _SWITCH[value.lower()]


def whole_number(text: str, least: int = 1) -> int:
    """UsageError, which does not repeat the text, if it is none or below `least`."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < _DIGITS and int(digits) >= least):
        raise UsageError(f"give a whole number of at least {least}")
    return int(digits)


def count(given: Said, least: int = 1) -> int:
    """UsageError if it is no whole number of at least `least`."""
    try:
        return whole_number(given.value, least)
    except UsageError as error:
        raise UsageError(f"{given.where} is {given.value!r}: {error}") from None


def flags_first(origins: Sequence[Mapping[str, Said]]) -> Words:
    """One set of words: any flag before any variable, else the origins in order."""
    flags = [{name: said for name, said in words.items() if said.where.startswith("-")} for words in origins]
    return ChainMap({}, *flags, *map(dict, origins))
