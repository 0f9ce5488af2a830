"""Calls that take turns, in the order in which they were made: a ring carries one collective at a time.

Whoever waits for a call makes it on the own thread when nothing is before it, which saves two changes of threads;
calls that are started and waited for later are made by one thread, which is there from the first of them to the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from ....errors import UsageError

T = TypeVar("T")


class Work(Generic[T]):
    """A call that was started. It is over when `done`, and then has left the memory that it worked on alone."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._future: Future[T] = Future()

    def wait(self, timeout: float | None = None) -> T:
        """What the call returned. Raises its error, or `TimeoutError` if it is not over in `timeout` seconds."""
        self._await(timeout)
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the call, which is waited for."""
        self._await(timeout)
        return self._future.exception()

    def _await(self, timeout: float | None) -> None:
        if not wait([self._future], timeout).done:
            raise TimeoutError(f"the collective was not over in {timeout} s")

    def when_done(self, call: Callable[[Work[T]], None]) -> None:
        """Have `call` made when it is over: on the thread that makes the calls, or at once if it is over already."""
        self._future.add_done_callback(lambda _: call(self))

    def make(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            value = call()
        except BaseException as error:
            self._future.set_exception(error)
            del self  # the error holds this frame, which would hold the work, which holds the error
        else:
            self._future.set_result(value)


class Turns:
    """`at_end` is called once, when it has ended and the last call is over; calls after that must fail by themselves."""

    def __init__(self, name: str, at_end: Callable[[], None]) -> None:
        self._name = name
        self._at_end: Callable[[], None] | None = at_end
        self._changed = threading.Condition()
        self._queue: deque[Work[object]] = deque()
        self._busy = False
        self._ended = False
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T]) -> T:
        """Make the call and wait for it. Not from what is called when a work is done, for which the next turn waits."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a collective cannot be waited for in a callback of another one: start it, and wait elsewhere"
            )
        with self._changed:
            alone = not self._busy and not self._queue and not self._ended
            if alone:
                self._busy = True
        if not alone:
            return self.start(call).wait()
        try:
            return call()
        finally:
            self._leave()

    def start(self, call: Callable[[], T]) -> Work[T]:
        work = Work(call)
        with self._changed:
            if not self._ended:
                self._queue.append(work)  # type: ignore[arg-type]
                if self._thread is None:
                    self._thread = threading.Thread(target=self._make_calls, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify()
                return work
        work.make()  # which fails
        return work

    def end(self) -> bool:
        """No more turns: what is queued is made, and fails; the thread ends. Does not wait for that.

        Returns whether this comes between two turns, with none to come; then `finish` has to follow.
        """
        with self._changed:
            self._ended = True
            self._changed.notify()
            return not self._busy and not self._queue

    def join(self, limit: float) -> bool:
        """Wait until the thread has ended, if there is one; whether it has."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(limit)
        return not thread.is_alive()

    def _leave(self) -> None:
        with self._changed:
            self._busy = False
            if self._queue:
                self._changed.notify()
        self.finish()

    def finish(self) -> None:
        """Call `at_end` if the last turn is over."""
        with self._changed:
            if not self._ended or self._busy or self._queue:
                return
            at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()

    def _make_calls(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._queue:
                    if self._ended and not self._busy:
                        return
                    self._changed.wait()
                work = self._queue.popleft()
                self._busy = True
            try:
                work.make()
            finally:
                del work
                self._leave()
