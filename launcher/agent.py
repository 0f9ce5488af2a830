"""The agent's life: find or serve the job, start the workers, relay until the job is over, end everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import traceback
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from ..rendezvous.client import Client
from ..rendezvous.meeting.point import MeetingServer
from ..rendezvous.messages import Hello, Stop, ToAgent, ToServer, Welcome
from . import exits
from .adopted import reap_adopted
from .batch.requeue import requeue
from .ending import Ending
from .endpoint import Seat, take_seat
from .error_reply import reply
from .events import Events
from .failures import ending_of
from .guarding import Guard
from .logs import ReporterHandler, show
from .options import Options
from .output.room import Output
from .parting import end_workers, leave_the_others
from .peer_watch import PeerWatch
from .relay import Relay
from .reporter import make_reporter
from .serving import JobServer, job_spec
from .signal_names import DRAINING
from .signals import SHELL_IS_FIRST, Signals, is_behind_a_first_shell
from .way import find_way
from .witness import Witness
from .workers import Workers, make_workers

_LAUNCHER = "elastic_launch.launcher."
_STOP_SLACK = 5.0  # seconds that a job may take longer to stop than its workers
_WATCH_PERIOD = 1.0  # seconds


class Agent:
    """One agent. `run` returns the exit code, when no process, port or thread of it is left that matters."""

    def __init__(self, options: Options, environ: Mapping[str, str], guard: Guard, output: Output) -> None:
        self._options = options
        self._environ = environ
        self._guard = guard
        self._output = output
        self._reporter = make_reporter(output, options.log_dir, options.job, options.host)
        self._log_handler = ReporterHandler(self._reporter, options.shown_level)
        self._witness = Witness(options.job, lambda: self._relay.slots.progress() if self._relay is not None else [])
        write = self._reporter.say if options.shows_events else _unread
        self._events = Events(options.job, options.host, options.role, write)
        self._name = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self._at_once = asyncio.Event()
        self._interrupts = 0
        self._drained_by = ""
        self._welcomes = 0
        self._workers: Workers | None = None
        self._relay: Relay | None = None
        self._client: Client | None = None
        self._server: JobServer | None = None
        self._meeting: MeetingServer | None = None
        self._peer_watch: PeerWatch | None = None

    async def run(self) -> int:
        self._loop.set_exception_handler(self._on_bug)
        self._guard.watch(self._loop)
        signals = Signals(self._loop, self._options.drain_signals, self.drain, self._interrupted)
        if is_behind_a_first_shell():
            self._reporter.say(SHELL_IS_FIRST)
        life = asyncio.ensure_future(self._ending_with_its_errors(self._live()))
        try:
            ending = await self._ending
            if self._relay is not None:
                self._relay.close()
                await end_workers(self._relay.slots, ending, self._at_once, self._reporter)
            await self._leave(ending, life)
        finally:
            signals.close()
            life.cancel()
            await self._close()
        return ending.code

    def drain(self, why: str) -> None:
        """This agent's workers leave the job by plan; it ends when they have, or after the time that they have for it."""
        if self._ending.done() or (self._relay is not None and self._relay.draining):
            return
        self._drained_by = why
        self._reporter.say(f"{why}: this agent's workers leave the job")
        if self._relay is None:
            self._end(Ending(exits.SUCCESS, "drained before any worker was started"))
            return
        limit = self._options.shutdown_timeout
        self._loop.call_later(limit, self._end, Ending(exits.SUCCESS, f"drained, but not in order within {limit:g} s"))
        self._relay.drain_all()

    def resize(self, slots: int) -> None:
        """This agent has so many workers from here on."""
        self._options = replace(self._options, nproc=slots)
        if self._relay is not None and self._workers is not None:
            self._workers.resize(slots)
            self._relay.resize(slots)

    def end_at_once(self) -> None:
        """Kills what is left, and waits for nobody."""
        self._at_once.set()
        self._end(Ending(exits.INTERRUPTED, "ended at once"))

    async def _live(self) -> None:
        seat = await self._take_seat()
        options = self._options
        address = options.address or (
            seat.address if seat is not None else await find_way(options.urls, options.rendezvous_timeout)
        )
        options = self._options  # the number of slots may have changed
        self._meeting = MeetingServer(address)
        workers = self._workers = make_workers(
            options, self._environ, address, self._name, self._output, self._guard, self._reporter
        )
        relay = self._relay = Relay(workers.start, self._meeting, self._send, self._end, self._reporter, options)
        urls = options.urls
        if options.serves:
            relay.start_all()  # first: they import for longer than the server does
            self._server = await JobServer.start(
                address, options, job_spec(options), seat.listener if seat is not None else None
            )
            self._invite(self._server.url if options.endpoint is None else options.endpoint.url)
            urls = (self._server.url,)
        tokens = options.access.tokens()
        self._client = Client(
            urls,
            options.job,
            self._hello,
            self._heard,
            options.rendezvous_timeout,
            self._extend_lease,
            beat=relay.beat,
            token=None if tokens is None else tokens.token,
            ssl=options.access.tls(urls),
        )
        watching = [asyncio.ensure_future(self._watch(self._client))]
        if options.watch_pods:
            self._peer_watch = PeerWatch(options, urls, self._reporter)
            watching.append(asyncio.ensure_future(self._peer_watch.run()))
        try:
            await self._client.run()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _take_seat(self) -> Seat | None:
        """Of the agent that serves at the endpoint; one that does not joins there. None without an endpoint, too."""
        endpoint = self._options.endpoint
        if endpoint is None:
            return None
        seat = await take_seat(endpoint, self._options.rendezvous_timeout)
        if seat is None:
            self._options = replace(self._options, urls=(endpoint.url,), endpoint=None)
        else:
            endpoint = replace(endpoint, port=seat.listener.getsockname()[1])
            self._options = replace(self._options, endpoint=endpoint)
        return seat

    async def _ending_with_its_errors(self, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
            self._end(Ending(exits.UNREACHABLE, "the connection to the rendezvous server has ended without a reason"))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._end(ending_of(error))

    def _invite(self, url: str) -> None:
        options = self._options
        self._reporter.say(
            f"serving job {options.job!r} for {options.min} to {options.max} workers at {url}; further agents join with"
            f" --rendezvous {url} --job {options.job}{' --token-file FILE' if options.access.token_file else ''}"
        )

    def _hello(self) -> Hello:
        assert self._relay is not None
        spec = job_spec(self._options) if self._options.describes_job else None
        hello = self._relay.hello(self._name, self._options.host, spec)
        show("agent", "server", hello)
        return hello

    def _send(self, message: ToServer) -> None:
        show("agent", "server", message)
        self._witness.said(message)
        self._events.said(message)
        if self._client is not None:
            self._client.send(message)

    def _extend_lease(self, until: float) -> None:
        if self._relay is not None:
            self._relay.slots.extend_lease(until)

    def _heard(self, message: ToAgent) -> None:
        assert self._relay is not None
        show("server", "agent", message)
        self._witness.heard(message)
        self._events.heard(message)
        if isinstance(message, Welcome):
            self._welcomes += 1
            if self._welcomes > 1:
                self._reporter.say("connected to the rendezvous server again")
        self._relay.take(message)
        if self._welcomes == 1 and isinstance(message, Welcome) and not self._options.serves:
            self._relay.start_all()

    async def _watch(self, client: Client) -> None:
        """Looks after what nothing tells. A lost server ends nothing as long as workers train: an intact ring goes on."""
        idle_since: float | None = None
        while True:
            await asyncio.sleep(_WATCH_PERIOD)
            assert self._relay is not None
            self._relay.tick()
            self._witness.look()
            others = {self._guard.pid, self._peer_watch.pid if self._peer_watch is not None else 0}
            assert self._workers is not None
            reap_adopted(
                known={*others, *self._workers.pids, *(pid for worker in self._relay.slots for pid in worker.pids)}
            )
            lost = self._welcomes > 0 and not client.connected
            if not lost or client.disconnected_since is None:
                continue
            self._reporter.say_once(
                "the rendezvous server is lost: the workers go on without it, and the agent looks for it"
            )
            if not all(worker.is_idle for worker in self._relay.slots):
                idle_since = None
                continue
            now = self._loop.time()
            idle_since = idle_since or now
            if now - max(idle_since, client.disconnected_since) > self._options.rendezvous_timeout:
                gone = now - client.disconnected_since
                text = f"the rendezvous server has been gone for {gone:.0f} s, and no worker trains here"
                text += ": start this agent again when it is back"
                self._end(Ending(exits.UNREACHABLE, text, ask=signal.SIGTERM))

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or (self._relay is not None and self._relay.draining):
            self.end_at_once()
        elif self._ending.done():
            self._reporter.say("SIGINT: ending already; a second one ends everything at once")
        elif self._client is None or self._welcomes == 0:
            self._end(Ending(exits.INTERRUPTED, "stopped before the job had started", ask=signal.SIGTERM, patience=2.0))
        else:
            self._reporter.say("SIGINT: the job is being stopped in order; a second one ends this agent at once")
            self._client.send(Stop(exits.INTERRUPTED, f"SIGINT on {self._options.host}"))
            limit = self._options.shutdown_timeout + _STOP_SLACK
            late = Ending(exits.INTERRUPTED, f"stopped, but not in order within {limit:g} s")
            self._loop.call_later(limit, self._end, late)

    def _end(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of the agent's own ends it; one of a library's connection is that connection's affair, and is shown."""
        error = context.get("exception")
        details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        if isinstance(error, BaseException) and _passed_through_here(error):
            self._end(Ending(exits.BUG, f"the agent has failed: {context.get('message')}", details))
        else:
            self._reporter.say(f"warning: {context.get('message')}\n{details}")

    async def _leave(self, ending: Ending, life: asyncio.Future[None]) -> None:
        self._log_handler.setLevel(logging.CRITICAL)  # connections that end are no news from here on
        led = self._options.led
        silent = self._options.quiet or (led and not self._witness.has_rank_0)
        summary = "" if silent else self._witness.summary()
        last_words = (replace(ending, tail="") if led else ending).last_words()
        self._reporter.say("\n".join(filter(None, (summary, last_words))))
        self._events.agent_ended(ending.code, ending.text)
        trouble = reply(ending, self._environ)
        if trouble:
            self._reporter.say(f"warning: {trouble}")
        if self._client is not None:
            await self._client.close()
            await asyncio.wait([life], timeout=2.0)
        if self._server is not None and not self._at_once.is_set():
            draining = self._relay is not None and self._relay.draining
            limit = math.inf if draining and self._options.outstays else self._options.shutdown_timeout
            await leave_the_others(self._server, ending, draining, limit, self._at_once, self._reporter)
        if ending.code == exits.SUCCESS and self._relay is not None and self._relay.draining:
            await self._requeue()

    async def _requeue(self) -> None:
        job, when = self._options.requeued_job, self._options.requeue
        if job and when != "never":
            warnings = {signal.Signals(number).name for number in self._options.drain_signals if number not in DRAINING}
            in_any_case = when == "always" and self._drained_by in warnings
            said = await self._loop.run_in_executor(None, requeue, job, in_any_case)
            self._reporter.say(said)

    async def _close(self) -> None:
        if self._workers is not None:
            await self._workers.close()
        if self._server is not None:
            with contextlib.suppress(Exception):
                await self._server.close()
        if self._meeting is not None:
            self._meeting.close()


def _unread(text: str) -> None:
    pass


def _passed_through_here(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(_LAUNCHER) for frame, _ in frames)
