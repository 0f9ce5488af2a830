"""Waits that can be ended from outside: every collective of a ring is waited for through a future of our own.

A receive of gloo's whose payload has started is not woken by shutting its socket; the future that stands for it here is
completed by `Guard.abort`, so nobody waits longer than that, whatever becomes of the operation below.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ...errors import RingError, StaleGroupError

Future = torch.futures.Future[Any]

MARK = "elastic ring broken"  # in every message, so that an error that passed through C++ is recognised


class Guard:
    """The state of one generation's ring: intact, or broken with a reason. Thread-safe."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.broken_at: float | None = None  # of `time.monotonic`
        self._lock = threading.Lock()
        self._pending: dict[Future, float] = {}
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

    def watch(self, work: Work, result: Any = None) -> Future:
        """A future for `work` that completes with its result, its error, or `RingError` on abort, whichever is first.

        `result`, if given, takes the place of the work's own.
        """
        future: Future = torch.futures.Future()
        with self._lock:
            if self._reason is None:
                self._pending[future] = time.monotonic()
        if self._reason is not None:
            _settle(future, None, self.error())
            return future

        def completed(inner: Future) -> None:
            try:
                value = inner.value()
                value, error = (value if result is None else result), None
            except Exception as caught:
                value, error = None, RingError(f"{MARK}: generation {self.generation}: {caught}")
                caught.__traceback__ = None  # see `wait_for`
            with self._lock:
                if self._pending.pop(future, None) is None:
                    return  # aborted meanwhile
            if error is not None:
                self.abort(str(error))  # one failed operation is the ring's end: nobody waits for the others
            _settle(future, value, error)

        work.get_future().add_done_callback(completed)
        return future

    def on_abort(self, call: Callable[[], None]) -> None:
        """Have `call` made once when the ring is aborted; at once if it is already."""
        with self._lock:
            if self._reason is None:
                self._waiters.append(call)
                return
        call()

    def abort(self, reason: str) -> None:
        """Complete every wait with an error, now and from now on."""
        with self._lock:
            if self._reason is None:
                self._reason, self.broken_at = reason, time.monotonic()
            pending, self._pending = list(self._pending), {}
            waiters, self._waiters = self._waiters, []
        for call in waiters:
            try:
                call()
            except Exception:  # the waits end all the same
                traceback.print_exc()
        for future in pending:
            _settle(future, None, self.error())

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts as an operation in flight, for a wait that is none of gloo's."""
        future: Future = torch.futures.Future()
        with self._lock:
            self._pending[future] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._pending.pop(future, None)

    def longest_wait(self) -> float:
        """Age in seconds of the oldest operation in flight; 0 if there is none."""
        with self._lock:
            oldest = min(self._pending.values(), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest


def _settle(future: Future, value: Any, error: Exception | None) -> None:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except RuntimeError:
        pass  # completed already


def wait_for(future: Future) -> Any:
    """The future's value. Raises `RingError`, one of its own.

    The error that a future holds must not keep a traceback: its frames hold the work, the work the ring, and no garbage
    collector sees through a future.
    """
    try:
        return future.wait()
    except Exception as error:
        text = str(error)
        error.__traceback__ = None
    raise RingError(text)


def error_of(future: Future) -> Exception | None:
    """The error that a completed future holds."""
    try:
        future.value()
    except Exception as error:
        error.__traceback__ = None
        return error
    return None


def came_from_ring(error: BaseException | None) -> bool:
    """Whether the error, or one that it came from, says that the ring broke. C++ passes on only the text of an error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StaleGroupError):
            return False
        if isinstance(error, (RingError, torch.distributed.DistError)) or MARK in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class GuardedWork(Work):
    """A work object of which every wait ends with the guard."""

    def __init__(self, guard: Guard, work: Work) -> None:
        super().__init__()
        self._work = work  # gloo's buffers live as long as this
        self._future = guard.watch(work)

    def wait(self, timeout: Any = None) -> bool:
        wait_for(self._future)
        return True

    def get_future(self) -> Future:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self.exception() is None

    def exception(self) -> Exception | None:
        if not self._future.done():
            return None
        return error_of(self._future)

    def result(self) -> Any:
        return self._future.value()

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._work._source_rank()
