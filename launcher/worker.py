"""What the agent needs of a worker, whatever kind of worker it is."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from ..rendezvous.messages import Crashed, FromWorker, ToWorker
from ..rendezvous.progress import Progress
from .worker_record import WorkerRecord


class Worker(ABC):
    """One member of the job, from its start until its `Hooks.ended` was called, once.

    `stopped`: the agent ended it on purpose, and for no fault of its own. `fault`: why the agent ended it, if for one.
    """

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.stopped = False
        self.fault = ""

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """Its processes that this agent waits for; the first is the one to be named."""

    @property
    def is_idle(self) -> bool:
        """Nothing is lost if it ends: it can do nothing until the server says something."""
        return False

    @abstractmethod
    def send(self, message: ToWorker) -> None: ...

    @abstractmethod
    def watch_for_death(self) -> None:
        """To be called once it has registered."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """To the worker and all that it has started."""

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it for no fault of its own."""
        self.stopped = True
        self.send_signal(number)

    @abstractmethod
    def progress(self) -> Progress: ...

    def step(self) -> int:
        """The number of the step that it is, or was, in."""
        return self.progress().step

    @abstractmethod
    def extend_lease(self, until: float) -> None: ...

    @abstractmethod
    def tail(self) -> str:
        """The last lines of what it wrote to its standard error."""

    @property
    @abstractmethod
    def is_drained(self) -> bool: ...

    @abstractmethod
    async def drained(self) -> None:
        """To be awaited after its end: what the processes that it had started still wrote is passed on, or its time is over."""


@dataclass(frozen=True)
class Hooks:
    """What a worker calls, with itself as the first argument.

    `dying` may be called before `ended`, with the exit code if it is known. `ended` is given the exit code (128 + n for
    signal n).
    """

    said: Callable[[Worker, FromWorker | Crashed], None]
    nonsense: Callable[[Worker, str], None]
    dying: Callable[[Worker, int | None], None]
    ended: Callable[[Worker, int], None]
