"""The state of one generation's ring, and all that waits on it: an abort ends every wait, whatever becomes of the operation."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator

from ...errors import RingError, StaleGroupError

MARK = "elastic ring broken"  # in every message, so that an error that passed through C++ is recognised

errors_of_rings: list[type[Exception]] = [RingError]
"""Errors that say that a ring broke, besides those that carry the mark. A framework adds its own."""

End = Callable[[RingError], None]


class Guard:
    """The state of one generation's ring: intact, or broken with a reason. Thread-safe."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.broken_at: float | None = None  # of `time.monotonic`
        self._lock = threading.Lock()
        self._pending: dict[Hashable, tuple[float, End | None]] = {}
        self._reason: str | None = None
        self._waiters: list[Callable[[], None]] = []

    @property
    def broken(self) -> str | None:
        """Why the ring is broken; None while it is intact."""
        return self._reason

    def check(self) -> None:
        """Raise `RingError` if the ring is broken."""
        if self._reason is not None:
            raise self.error()

    def error(self) -> RingError:
        return RingError(f"{MARK}: generation {self.generation}: {self._reason}")

    def enter(self, operation: Hashable, end: End | None = None) -> bool:
        """Note an operation in flight; False if the ring is broken. `end` is called if it is aborted before it has left."""
        with self._lock:
            if self._reason is None:
                self._pending[operation] = (time.monotonic(), end)
            return self._reason is None

    def leave(self, operation: Hashable) -> bool:
        """The operation is over; False if the ring was aborted meanwhile."""
        with self._lock:
            return self._pending.pop(operation, None) is not None

    def on_abort(self, call: Callable[[], None]) -> None:
        """Have `call` made once when the ring is aborted; at once if it is already."""
        with self._lock:
            if self._reason is None:
                self._waiters.append(call)
                return
        call()

    def abort(self, reason: str) -> None:
        """End every wait with an error, now and from now on."""
        with self._lock:
            if self._reason is None:
                self._reason, self.broken_at = reason, time.monotonic()
            pending, self._pending = list(self._pending.values()), {}
            waiters, self._waiters = self._waiters, []
        for call in waiters:
            try:
                call()
            except Exception:  # the waits end all the same
                traceback.print_exc()
        for _, end in pending:
            if end is not None:
                end(self.error())

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts as an operation in flight, for a wait that ends by itself when the ring is aborted."""
        operation = object()
        self.enter(operation)
        try:
            yield
        finally:
            self.leave(operation)

    def longest_wait(self) -> float:
        """Age in seconds of the oldest operation in flight; 0 if there is none."""
        with self._lock:
            oldest = min((since for since, _ in self._pending.values()), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest


def came_from_ring(error: BaseException | None) -> bool:
    """Whether the error, or one that it came from, says that the ring broke. C++ passes on only the text of an error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StaleGroupError):
            return False
        if isinstance(error, tuple(errors_of_rings)) or MARK in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
