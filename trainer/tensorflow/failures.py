"""Errors raised by Python code inside of a graph: TensorFlow makes errors of its own out of them, which have the text alone.

What breaks a ring, or unwinds a step, has to come out of a `tf.function` as what it was, so it is kept here meanwhile.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NUMBER = re.compile(r"\[elastic-launch error (\d+)\]")
_AT_MOST = 8  # errors that nobody has asked for; each holds the frames that it came through

_kept: dict[int, BaseException] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


class Kept(Exception):
    """Stands for an error that `original` knows."""


def keeping(call: Callable[P, T]) -> Callable[P, T]:
    """The same function, of whose errors `original` finds the error again."""

    def kept(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except BaseException as error:
            with _lock:
                number = next(_numbers)
                _kept[number] = error
                for old in [*_kept][:-_AT_MOST]:
                    del _kept[old]
            raise Kept(f"[elastic-launch error {number}] {type(error).__name__}: {error}") from error

    return kept


def original(error: BaseException) -> BaseException:
    """The error that our code raised inside of a graph, of which TensorFlow has made `error`; else `error` itself. Once."""
    found = _NUMBER.search(str(error))
    if found is None:
        return error
    with _lock:
        return _kept.pop(int(found[1]), error)
