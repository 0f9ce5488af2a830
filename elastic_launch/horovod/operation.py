"""One collective that this member has asked for: its memory, and its end, which others may wait for."""

from __future__ import annotations

import threading
from typing import Any

from ..errors import RingError
from .common.exceptions import HorovodInternalError
from .requests import Request


class Operation:
    """`memory` is what the collective reads, and, if it is a reduction or a broadcast, what it writes: any array of the ring's.

    When it is over, `elements` is the flat result of those that make one, of the shape `shape`, and `splits` the rows that
    came from each rank. `last_joined` is a rank.
    """

    def __init__(self, request: Request, memory: Any = None) -> None:
        self.request = request
        self.memory = memory
        self.elements: Any = None
        self.shape: tuple[int, ...] = ()
        self.splits: tuple[int, ...] = ()
        self.data = b""
        self.last_joined = -1
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self, error: BaseException | None = None) -> None:
        """With the error that every `wait` raises. Later calls change nothing."""
        with self._lock:
            if self._over.is_set():
                return
            self._error = error
            self._over.set()

    def wait(self) -> Operation:
        """Itself, when it is over. Raises `HorovodInternalError` if the ring broke; a broken ring ends every operation."""
        self._over.wait()
        if self._error is not None:
            if isinstance(self._error, RingError):
                raise HorovodInternalError(str(self._error)) from self._error
            raise self._error
        return self
