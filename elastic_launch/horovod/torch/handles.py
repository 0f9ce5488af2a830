"""What the asynchronous forms return, and `poll` and `synchronize` take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..operation import Operation


class Handle:
    """Operations that are under way, and what makes the result of them when they are over, once."""

    def __init__(self, operations: Sequence[Operation], finish: Callable[[], Any]) -> None:
        self._operations = operations
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    @property
    def is_over(self) -> bool:
        return all(operation.is_over for operation in self._operations)

    def wait(self) -> Any:
        for operation in self._operations:
            operation.wait()
        if self._finish is not None:
            finish, self._finish, self._operations = self._finish, None, ()
            self._result = finish()
        return self._result


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return, or raise, at once."""
    return handle.is_over


def synchronize(handle: Handle) -> Any:
    """The result, when it is there: a tensor, or a tuple of them. Raises `HorovodInternalError` if the ring broke."""
    return handle.wait()
