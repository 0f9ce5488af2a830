"""The worker's line to its agent: what was announced, released, asked for; and what the worker has to say.

A daemon thread reads it, so that an abort reaches a ring whose member is stuck in C++. If the agent is gone, the worker is too.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import RendezvousError, UsageError
from ..rendezvous import worker_environment as environment
from ..rendezvous.messages import (
    Announce,
    Done,
    Drain,
    Evicted,
    Message,
    Release,
    Released,
    Welcome,
    decode_to_worker,
    encode,
)
from ..rendezvous.progress import Progress, ProgressPage

HANG_CHECK_INTERVAL = 1.0  # seconds


@dataclass(frozen=True)
class Identity:
    """Who this worker is, from its agent's environment."""

    worker: str
    job: str
    host: str
    address: str
    local_rank: int
    local_world_size: int
    backend: str = "gloo"


class Control(ABC):
    """What a worker needs to know of the outside. All attributes are guarded by `changed`."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.changed = threading.Condition()
        self.announced: Announce | None = None
        self.announced_at = 0.0  # when it came, of `time.monotonic`
        self.released_generation = 0
        self.durable_generation = 0
        self.parked = False
        self.may_leave: Released | None = None
        self.draining = False
        self.done = False
        self.evictions = 0
        self.hang_timeout = 300.0
        self.on_announce: Callable[[Announce], None] | None = None
        self.on_evicted: Callable[[str], None] | None = None
        self.on_ending: Callable[[], None] | None = None
        self.check_for_hang: Callable[[float], None] | None = None

    @abstractmethod
    def send(self, message: Message) -> None: ...

    @abstractmethod
    def progress(self, progress: Progress) -> None: ...

    def may_step_alone(self) -> bool:
        """Whether the server counts this worker in, or nobody decides at present. Asked in a ring of one."""
        return True

    @abstractmethod
    def close(self) -> None:
        """The process is about to exit in order. On the thread that has joined the job."""

    def rank_in(self, announce: Announce) -> int | None:
        """This worker's rank in a generation; -1 as a leaver, None if it has no place in it."""
        return next((place.rank for place in announce.places if place.worker == self.identity.worker), None)

    def take(self, message: Message) -> None:
        """Note a message of the agent's. On the control thread."""
        with self.changed:
            if isinstance(message, (Announce, Welcome)):
                self.durable_generation = max(self.durable_generation, message.formed)
            if isinstance(message, Announce):
                if self.announced is None or message.generation > self.announced.generation:
                    self.announced = message
                    self.announced_at = time.monotonic()
            elif isinstance(message, Release):
                self.released_generation = max(self.released_generation, message.generation)
                self.parked = message.parked
            elif isinstance(message, Released):
                self.may_leave = message
            elif isinstance(message, Drain):
                self.draining = True
            elif isinstance(message, Done):
                self.done = True
            elif isinstance(message, Evicted):
                self.evictions += 1
            elif isinstance(message, Welcome):
                self.hang_timeout = message.hang_timeout
            self.changed.notify_all()
        if isinstance(message, Announce) and self.on_announce is not None:
            self.on_announce(message)
        if isinstance(message, (Done, Released)) and self.on_ending is not None:
            self.on_ending()
        if isinstance(message, Evicted) and self.on_evicted is not None:
            self.on_evicted(message.reason)


class AgentControl(Control):
    """The control line of a worker that an agent started."""

    def __init__(self, identity: Identity, line: socket.socket, page: ProgressPage) -> None:
        super().__init__(identity)
        self._line = line
        self._page = page
        self._sending = threading.Lock()
        if threading.current_thread() is threading.main_thread():
            page.death_watch.hold()
        self._thread = threading.Thread(target=self._listen, name="control", daemon=True)
        self._hang_thread = threading.Thread(target=self._watch_for_hangs, name="hang-watch", daemon=True)
        self._stop = threading.Event()
        self._thread.start()
        self._hang_thread.start()

    def send(self, message: Message) -> None:
        try:
            with self._sending:
                self._line.sendall(encode(message) + b"\n")
        except OSError as error:
            raise RendezvousError(f"the agent of this worker is gone: {error}") from error

    def progress(self, progress: Progress) -> None:
        self._page.write(progress)

    def may_step_alone(self) -> bool:
        until = self._page.read_lease()
        return not until or time.monotonic() < until

    def close(self) -> None:
        self._stop.set()
        if threading.current_thread() is threading.main_thread():
            self._page.death_watch.let_go()

    def _listen(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._line.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self.take(decode_to_worker(line))
        print("elastic: the agent of this worker is gone; the worker ends", file=sys.stderr, flush=True)
        os._exit(70)

    def _watch_for_hangs(self) -> None:
        while not self._stop.wait(HANG_CHECK_INTERVAL):
            if self.check_for_hang is not None:
                self.check_for_hang(self.hang_timeout)


class SoloControl(Control):
    """No agent: a job of one worker, which is a member of generation 1 from the start."""

    def __init__(self) -> None:
        super().__init__(Identity("solo", "solo", socket.gethostname(), "127.0.0.1", 0, 1))

    def send(self, message: Message) -> None:
        from ..rendezvous.messages import Finished, Formed, Place, Ready

        if isinstance(message, Ready):
            self.take(Announce(1, 1, [Place("solo", 0)], "", "", cause="start", reason="a job of one worker"))
        elif isinstance(message, Formed):
            self.take(Release(message.generation))
        elif isinstance(message, Finished):
            self.take(Done())

    def progress(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


def from_environment(variables: Mapping[str, str] = os.environ) -> Control:
    """The control line that this process was started with, or that of a job of one."""
    if environment.RESTARTED in variables:
        raise UsageError(
            "this script was started as one that knows nothing of its job, and calls elastic_launch.join(): start it with"
            " elastic-launch --on-change in-process"
        )
    if environment.CONTROL_FD not in variables:
        return SoloControl()
    backend = variables.get(environment.BACKEND) or "gloo"
    if backend not in environment.BACKENDS:
        raise UsageError(f"{environment.BACKEND} is {backend!r}: give {' or '.join(environment.BACKENDS)}")
    identity = Identity(
        worker=variables[environment.WORKER],
        job=variables.get(environment.JOB, "default"),
        host=variables.get(environment.HOST, ""),
        address=variables.get(environment.ADDRESS, "127.0.0.1"),
        local_rank=int(variables.get(environment.LOCAL_RANK, "0")),
        local_world_size=int(variables.get(environment.LOCAL_WORLD_SIZE, "1")),
        backend=backend,
    )
    line = socket.socket(fileno=int(variables[environment.CONTROL_FD]))
    os.set_inheritable(line.fileno(), False)
    return AgentControl(identity, line, ProgressPage(int(variables[environment.PROGRESS_FD])))
