"""Gloo: connecting a group so that it can be given up at any moment, and the timeouts of its operations."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from ....errors import RingError
from ...ring.guard import Guard
from . import undertaker

CONNECT_TIMEOUT = timedelta(seconds=4)
"""Given to gloo while it connects; it waits five times as long. Nobody waits for that: the thread is left behind."""


def connect(store: Store, rank: int, size: int, address: str, guard: Guard, operation_timeout: timedelta) -> Any:
    """A connected `ProcessGroupGloo` of `size` ranks that listens on `address`.

    Raises `RingError` as soon as `guard` is aborted, or when gloo cannot connect. `operation_timeout` bounds the operations
    that no abort ever reaches.
    """
    connecting = Connecting(store, rank, size, address, guard)
    group = connecting.result()
    group._set_default_timeout(operation_timeout)
    return group


class Connecting:
    """A group that is being connected on a thread of its own."""

    def __init__(self, store: Store, rank: int, size: int, address: str, guard: Guard) -> None:
        self._guard = guard
        self._done = threading.Event()
        self._outcome: list[Any] = []
        self._error: Exception | None = None
        self._abandoned = False
        self._lock = threading.Lock()
        guard.on_abort(self._done.set)
        undertaker.start(f"connect-{guard.generation}", self._connect, store, rank, size, address)

    def _connect(self, store: Store, rank: int, size: int, address: str) -> None:
        # The options and the device must not outlive a failed constructor: a late connection would find them freed.
        group = None
        try:
            group = ProcessGroupGloo(store, rank, size, _options(address))
        except Exception as error:
            self._error = RingError(f"could not connect the ring of generation {self._guard.generation}: {error}")
        with self._lock:
            if group is not None and not self._abandoned:
                self._outcome.append(group)
        self._done.set()

    def result(self) -> Any:
        self._done.wait()  # ends on abort; gloo's own limit bounds it otherwise
        with self._lock:
            if self._outcome and self._guard.broken is None:
                return self._outcome.pop()
            self._abandoned = True
            if self._outcome:
                undertaker.bury(self._outcome, f"ring-{self._guard.generation}")
        self._guard.check()
        raise self._error or RingError("the ring was not connected")


def _options(address: str) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address, lazy_init=False)]
    options._timeout = CONNECT_TIMEOUT
    options._threads = 2
    return options
