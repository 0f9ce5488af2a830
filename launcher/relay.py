"""Between the server and this agent's workers: passes messages on, in both directions, and does the agent's part of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..rendezvous.messages import (
    Announce,
    Beat,
    Crashed,
    Done,
    Drain,
    Dying,
    Evicted,
    Exited,
    Failed,
    FromWorker,
    Hello,
    JobSpec,
    Leaving,
    Refused,
    Registered,
    Release,
    Released,
    Restart,
    Started,
    ToAgent,
    ToServer,
    ToWorker,
    Welcome,
)
from . import exits
from .ending import Ending
from .logs import show
from .memory_kills import MemoryKills
from .options import Options
from .reporter import Reporter
from .slots import Slots
from .worker import Hooks, Worker
from .worker_record import WorkerRecord

_SERVER_FIRST = 1.0  # seconds
_OUT_OF_MEMORY = "the kernel killed it for memory"
_LEAST_EVICTION = 30.0  # seconds that an evicted worker has at least to answer


class MeetingPoint(Protocol):
    """Where the members of a generation whose rank 0 is here meet (`rendezvous.meeting.point.MeetingServer`)."""

    address: str

    def open(self, job: str, generation: int, secret: str) -> None: ...

    def forget(self, before: int) -> None: ...


class Relay:
    """Owns the slots, whose workers `make` starts. `send` reaches the server.

    `end` is called, perhaps more than once, when there is nothing left to do.
    """

    def __init__(
        self,
        make: Callable[[WorkerRecord, Hooks], Worker],
        meeting: MeetingPoint,
        send: Callable[[ToServer], None],
        end: Callable[[Ending], None],
        reporter: Reporter,
        options: Options,
    ) -> None:
        hooks = Hooks(self._said, self._nonsense, self._dying, self._ended)
        self.slots = Slots(options.nproc, make, hooks)
        self.draining = False
        self.is_over = False
        self._job = options.job
        self._slot_count = options.nproc
        self._meeting = meeting
        self._send = send
        self._end = end
        self._reporter = reporter
        self._serves = options.serves
        self._describes_job = options.describes_job
        self._pod = options.pod
        self._restarts_scripts = options.restarts
        self._shutdown_timeout = options.shutdown_timeout
        self._hang_timeout = options.hang_timeout
        # A worker that is about to join may have begun to leave SIGTERM to this agent.
        self._sure_end = signal.SIGKILL if options.everybody_is_signalled else signal.SIGTERM
        self._loop = asyncio.get_running_loop()
        self._welcome: Welcome | None = None
        self._announced = 0
        self._opened = (0, "")
        self._unanswered: dict[int, Exited] = {}  # by slot
        self._restarts: dict[int, asyncio.TimerHandle] = {}
        self._rejected: set[int] = set()
        self._surplus: set[str] = set()  # workers that leave for a lower number of slots
        self._memory_kills = MemoryKills()

    def hello(self, agent: str, host: str, spec: JobSpec | None) -> Hello:
        claims, address = self.slots.claims(), self._meeting.address
        return Hello(agent, host, address, spec, claims, self._announced, self._pod, self._restarts_scripts)

    def beat(self) -> Beat:
        """A heartbeat, with what this agent's workers have come to."""
        beat = Beat(self.slots.progress())
        show("agent", "server", beat)
        return beat

    def start_all(self) -> None:
        for local_rank in range(self._slot_count):
            self._start(local_rank)

    def drain_all(self) -> None:
        """Every worker leaves by plan; `end` is called when the last one is gone."""
        self.draining = True
        self._cancel_restarts()
        for worker in self.slots:
            self._let_go(worker)
        self._end_if_drained()

    def resize(self, count: int) -> None:
        """`count` slots from here on: the workers of those above leave by plan, and empty ones get fresh workers."""
        if self.draining or self.is_over:
            return
        self._slot_count = count
        self.slots.resize(count)
        for worker in self.slots:
            if worker.record.local_rank >= count and worker.record.worker not in self._surplus:
                self._surplus.add(worker.record.worker)
                self._let_go(worker)
        for local_rank in range(count) if self._welcome is not None else ():  # before it, nothing has been started
            if self.slots.is_free(local_rank) and local_rank not in self._restarts:
                self._start(local_rank)

    def tick(self) -> None:
        """To be called about once a second."""
        self._memory_kills.sample()

    def close(self) -> None:
        """No worker is started from here on."""
        self.is_over = True
        self._cancel_restarts()

    def take(self, message: ToAgent) -> None:
        """A message of the server's."""
        if isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Announce):
            self._announce(message)
        elif isinstance(message, Release):
            for worker in self.slots:
                if message.generation in (worker.record.announced, worker.record.formed):
                    self._tell_worker(worker, message)
        elif isinstance(message, Restart):
            self._restart_later(message)
        elif isinstance(message, Done):
            self._done()
        elif isinstance(message, Failed):
            self._end(Ending.failed(self._job, message))
        elif isinstance(message, Refused):
            hint = "" if self._describes_job else ". Check --job; a job's first agent needs --min and --max"
            self._end(Ending(exits.REFUSED, f"the rendezvous server refused this agent: {message.reason}{hint}"))
        else:
            worker_or_none = self.slots.find(message.worker)
            if worker_or_none is not None:
                self._tell(worker_or_none, message)

    def _tell_worker(self, worker: Worker, message: ToWorker) -> None:
        show("agent", f"worker {worker.record.local_rank}", message)
        worker.send(message)

    def _tell(self, worker: Worker, message: Released | Evicted | Drain) -> None:
        if isinstance(message, Drain):
            self._drain(worker)
            return
        if isinstance(message, Released) and not worker.record.leaving:
            self._tell_worker(worker, Drain(worker.record.worker))  # nobody leaves unasked
        self._tell_worker(worker, message)
        if isinstance(message, Evicted):
            self._reporter.say(f"{_name(worker)} was evicted: {message.reason}")
            limit = max(_LEAST_EVICTION, self._hang_timeout)
            self._loop.call_later(limit, self._kill_if_silent, worker, worker.record.evictions, limit)

    def _welcomed(self, message: Welcome) -> None:
        self._welcome = message
        self._hang_timeout = message.hang_timeout
        for worker in self.slots:
            self._tell_worker(worker, message)
        for exited in self._unanswered.values():
            self._send(exited)

    def _announce(self, message: Announce) -> None:
        is_news = message.generation > self._announced
        self._announced = max(self._announced, message.generation)
        ours = [(place, worker) for place in message.places if (worker := self.slots.find(place.worker)) is not None]
        if any(place.rank == 0 for place, _ in ours):
            self._open_meeting(message)
            if is_news:
                self._reporter.say(f"generation {message.generation}: {_workers(message.world_size)}{_cause(message)}")
        # The last formed generation's ring may still be stepping, until an agreed boundary.
        self._meeting.forget(before=message.formed)
        for place, worker in ours:
            self._tell_worker(worker, msgspec.structs.replace(message, places=[place]))

    def _open_meeting(self, message: Announce) -> None:
        """Once: a server says again what it is not sure that we have heard, and members may have met already."""
        if self._opened != (message.generation, message.secret):
            self._opened = message.generation, message.secret
            self._meeting.open(self._job, message.generation, message.secret)

    def _let_go(self, worker: Worker) -> None:
        if worker.record.registered:
            self._send(Leaving(worker.record.worker))
        self._drain(worker)

    def _drain(self, worker: Worker) -> None:
        """A worker that has not joined hears no message, and has nothing to hand over."""
        if worker.record.registered:
            self._tell_worker(worker, Drain(worker.record.worker))
        else:
            worker.stop(self._sure_end)

    def _done(self) -> None:
        self._unanswered.clear()
        for worker in self.slots:
            self._tell_worker(worker, Done())
        self._end(Ending(exits.SUCCESS, f"job {self._job!r} is done", patience=self._shutdown_timeout))

    def _said(self, worker: Worker, message: FromWorker | Crashed) -> None:
        if message.worker != worker.record.worker:
            self._nonsense(worker, f"it speaks as another worker, {message.worker!r}")
            return
        show(f"worker {worker.record.local_rank}", "agent", message)
        worker.record.said(message)
        if isinstance(message, Registered):
            worker.watch_for_death()
        elif isinstance(message, Crashed):
            if message.code == 128 + signal.SIGKILL and not message.reason and self._memory_kills.there_was_one():
                message = msgspec.structs.replace(message, reason=_OUT_OF_MEMORY)
            self._reporter.say(
                f"the script of {_name(worker)} has ended: {_end_in_words(message.code, message.reason)}"
            )
        self._send(message)

    def _nonsense(self, worker: Worker, what: str) -> None:
        self._reporter.say(f"{_name(worker)} has sent what cannot be understood, ignored: {what}")

    def _dying(self, worker: Worker, code: int | None) -> None:
        if not worker.stopped and not worker.record.released:
            self._send(Dying(worker.record.worker, code))

    def _ended(self, worker: Worker, code: int) -> None:
        record = worker.record
        kind, code, reason = exits.classify(code, record, worker.stopped)
        if kind == "crash" and worker.fault:
            reason = worker.fault
        elif kind == "crash" and code == 128 + signal.SIGKILL and self._memory_kills.there_was_one():
            reason = _OUT_OF_MEMORY
        tail = worker.tail() if kind in ("crash", "rejected") else ""
        exited = Exited(record.worker, code, kind, worker.step(), reason, tail, record.local_rank)
        self._unanswered[record.local_rank] = exited
        self._send(exited)
        if kind in ("crash", "rejected", "stale"):
            self._reporter.say(f"{_name(worker)} has ended{_in_step(exited.step)}: {_end_in_words(code, reason)}")
        if kind == "rejected":
            self._rejected.add(record.local_rank)
        self._end_if_drained()
        if record.worker in self._surplus:
            self._surplus.discard(record.worker)
            if not self.draining and not self.is_over:
                self._restart(record.local_rank)  # if the slot is wanted again
        if len(self._rejected) == self._slot_count and not self._serves:
            # After the server's own word, if this fails the whole job.
            self._loop.call_later(_SERVER_FIRST, self._end, Ending.rejected(self._job, exited))

    def _end_if_drained(self) -> None:
        if self.draining and not self.slots:
            self._end(Ending(exits.SUCCESS, "drained: this agent's workers have left the job"))

    def _restart_later(self, message: Restart) -> None:
        self._unanswered.pop(message.local_rank, None)
        if self.draining or self.is_over or message.local_rank in self._restarts:
            return
        if message.delay > 0:
            self._reporter.say(f"slot {message.local_rank}: a fresh worker starts in {message.delay:g} s")
        self._restarts[message.local_rank] = self._loop.call_later(message.delay, self._restart, message.local_rank)

    def _restart(self, local_rank: int) -> None:
        self._restarts.pop(local_rank, None)
        if self.slots.is_free(local_rank):
            self._start(local_rank)

    def _start(self, local_rank: int) -> None:
        try:
            worker = self.slots.start(local_rank)
        except OSError as error:
            self._end(Ending(exits.BUG, f"a worker cannot be started: {error}. Check this host's limits (ulimit -a)"))
            return
        self._send(Started(worker.record.worker, local_rank))
        if self._welcome is not None:
            self._tell_worker(worker, self._welcome)

    def _cancel_restarts(self) -> None:
        for restart in self._restarts.values():
            restart.cancel()
        self._restarts.clear()

    def _kill_if_silent(self, worker: Worker, eviction: int, limit: float) -> None:
        """Ends a worker that has not answered this eviction."""
        if worker.record.evicted and worker.record.evictions == eviction:
            worker.fault = f"hung: it was evicted, and gave no sign of life within {limit:.0f} s"
            worker.send_signal(signal.SIGKILL)


def _name(worker: Worker) -> str:
    record = worker.record
    rank = f"rank {record.rank}" if record.rank >= 0 else "no member yet"
    return f"worker in slot {record.local_rank} ({rank}, {_pid(worker)})"


def _pid(worker: Worker) -> str:
    return f"pid {worker.pids[0]}" if worker.pids else "no process"


def _end_in_words(code: int, reason: str) -> str:
    return f"{exits.in_words(code)}, {reason}" if reason else exits.in_words(code)


def _in_step(step: int) -> str:
    return f" in step {step}" if step > 0 else ""


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _cause(message: Announce) -> str:
    return f" ({message.reason or message.cause})" if message.reason or message.cause else ""
