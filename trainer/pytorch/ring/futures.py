"""Collectives as waits that can be ended from outside: each is waited for through a future of our own.

A receive of gloo's whose payload has started is not woken by shutting its socket; the future that stands for it here is
completed by `Guard.abort`, so nobody waits longer than that, whatever becomes of the operation below.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ....errors import RingError
from ...ring.guard import MARK, Guard, errors_of_rings

Future = torch.futures.Future[Any]

errors_of_rings.append(torch.distributed.DistError)


def watch(guard: Guard, work: Work, result: Any = None) -> Future:
    """A future for `work` that completes with its result, its error, or `RingError` on abort, whichever is first.

    `result`, if given, takes the place of the work's own.
    """
    future: Future = torch.futures.Future()
    if not guard.enter(future, lambda error: _settle(future, None, error)):
        _settle(future, None, guard.error())
        return future

    def completed(inner: Future) -> None:
        try:
            value = inner.value()
            value, error = (value if result is None else result), None
        except Exception as caught:
            value, error = None, RingError(f"{MARK}: generation {guard.generation}: {caught}")
            caught.__traceback__ = None  # see `wait_for`
        if not guard.leave(future):
            return  # aborted meanwhile
        if error is not None:
            guard.abort(str(error))  # one failed operation is the ring's end: nobody waits for the others
        _settle(future, value, error)

    work.get_future().add_done_callback(completed)
    return future


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


class GuardedWork(Work):
    """A work object of which every wait ends with the guard."""

    def __init__(self, guard: Guard, work: Work) -> None:
        super().__init__()
        self._work = work  # gloo's buffers live as long as this
        self._future = watch(guard, work)

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
