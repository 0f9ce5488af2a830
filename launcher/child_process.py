"""A process of this agent's with its output, from its start until nothing of its group is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .guard import kill_group, signal_marked
from .guarding import Guard
from .output.prefixes import Label
from .output.room import Output
from .output.worker_output import WorkerOutput
from .process_groups import has_live_members, killed_by
from .threads import in_a_thread

_DRAIN_LIMIT = 1.0  # seconds to read the output of a dead process whose pipe another process holds
_FOLLOWERS_LIMIT = 30.0  # seconds that what a terminated process has started has for its own end
_FOLLOWERS_PERIOD = 0.05  # seconds
_ESCAPED_LIMIT = 5.0  # seconds to find and kill what has left the group of a failed process


class Started(Protocol):
    """A child of this process, which nobody else waits for; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Its exit code, -n for signal n."""
        ...


class ChildProcess:
    """It leads a session and a process group of its own. If the agent dies it gets SIGKILL, and the guard kills its group.

    `on_end` is called once, with the exit code (128 + n for signal n), when all that it wrote itself has been read. Nothing of
    its group outlives it. What has left its group for a session of its own does so only if the process ended with 0.
    """

    def __init__(
        self,
        start: Callable[[int, int], Started],
        output: Output,
        guard: Guard,
        label: Callable[[], Label],
        logs: Path | None,
        on_end: Callable[[int], None],
        mark: str = "",
    ) -> None:
        """`start` is given the descriptors that are to be its standard output and error. OSError if it cannot be started.

        `mark` is a NAME=value of its environment by which what it has started is known, wherever that went.
        """
        self._guard = guard
        self._on_end = on_end
        self._mark = mark.encode()
        self._was_asked_to_end = False
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        self._followers: asyncio.Task[None] | None = None
        destinations = output.destinations(label().slot, logs)
        (stdout, stdout_end), (stderr, stderr_end) = os.pipe(), os.pipe()
        try:
            self._process = start(stdout_end, stderr_end)
        except BaseException:
            for descriptor in (stdout, stderr):
                os.close(descriptor)
            for destination in destinations:
                destination.close()
            raise
        finally:
            os.close(stdout_end)
            os.close(stderr_end)
        self.pid = self._process.pid
        guard.add(self.pid, mark)
        self._stdout = WorkerOutput(stdout, label, destinations[0])
        self._stderr = WorkerOutput(stderr, label, destinations[1])
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._died)

    @property
    def has_ended(self) -> bool:
        return self._drain is not None

    def send_signal(self, number: int) -> None:
        """To the process and all of its group."""
        if not self.has_ended:
            self._was_asked_to_end |= number == signal.SIGTERM
            kill_group(self.pid, number)

    def tail(self) -> str:
        """The last lines of what it wrote to its standard error."""
        return self._stderr.tail()

    @property
    def is_drained(self) -> bool:
        return self._drain is not None and self._drain.done()

    async def drained(self) -> None:
        """To be awaited after its end: what the processes that it had started still wrote is passed on, or its time is over."""
        if self._drain is not None:
            await self._drain

    def _died(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._was_asked_to_end and killed_by(self.pid) == signal.SIGTERM:
            # A shell that was in front of the program: the program itself still handles the same signal.
            self._followers = self._loop.create_task(self._wait_for_followers())
        else:
            self._end()

    async def _wait_for_followers(self) -> None:
        deadline = self._loop.time() + _FOLLOWERS_LIMIT
        while self._loop.time() < deadline:
            began = self._loop.time()
            if not has_live_members(self.pid):
                break
            # Where there are thousands of processes, to look at them all takes a while, in which nothing else is done.
            await asyncio.sleep(max(_FOLLOWERS_PERIOD, 10 * (self._loop.time() - began)))
        self._end()

    def _end(self) -> None:
        # Before the process is reaped its number cannot be given to another process group.
        kill_group(self.pid)
        self._guard.remove(self.pid)
        code = self._process.wait()
        # Whoever waits for it is to hear of its end at once: what it wrote itself is in the pipes already.
        self._stdout.read_what_is_there()
        self._stderr.read_what_is_there()
        self._drain = self._loop.create_task(self._read_the_rest(with_the_escaped=code != 0))
        self._on_end(code if code >= 0 else 128 - code)

    async def _read_the_rest(self, with_the_escaped: bool) -> None:
        if with_the_escaped and self._mark:
            # To look at a process that is stuck in the kernel may take as long as it is.
            with contextlib.suppress(asyncio.TimeoutError):
                looking = in_a_thread(lambda: signal_marked(self._mark), "escaped", stop=lambda: None)
                await asyncio.wait_for(looking, _ESCAPED_LIMIT)
        await asyncio.gather(self._stdout.drain(_DRAIN_LIMIT), self._stderr.drain(_DRAIN_LIMIT))
