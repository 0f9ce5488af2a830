"""The agent's life: find or serve the job, start the workers, relay until the job is over, end everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import traceback
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from ..errors import AuthorizationError, ElasticError, RendezvousError
from ..rendezvous.client import Client
from ..rendezvous.meeting.point import MeetingServer
from ..rendezvous.messages import Hello, JobSpec, Stop, ToAgent, ToServer, Welcome
from . import exits
from .address import address_towards_any
from .adopted import reap_adopted
from .ending import Ending
from .endpoint import Seat, take_seat
from .guarding import Guard
from .logs import ReporterHandler
from .options import Options
from .output.log_folders import host_folder
from .output.room import Output
from .peer_watch import PeerWatch
from .process_groups import where_it_is_stuck
from .relay import Relay
from .reporter import Reporter
from .serving import JobServer, PortError
from .signals import SHELL_IS_FIRST, Signals, is_behind_a_first_shell
from .workers import Workers, make_workers

_PACKAGE = "elastic_launch"
_LAUNCHER = "elastic_launch.launcher."
_LOOK_AGAIN = 0.5  # seconds between two attempts to find the way to the server
_STOP_SLACK = 5.0  # seconds that a job may take longer to stop than its workers
_WATCH_PERIOD = 1.0  # seconds


class Agent:
    """One agent. `run` returns the exit code, when no process, port or thread of it is left that matters."""

    def __init__(self, options: Options, environ: Mapping[str, str], guard: Guard, output: Output) -> None:
        self._options = options
        self._environ = environ
        self._guard = guard
        self._output = output
        self._reporter = self._make_reporter()
        self._log_handler = ReporterHandler(self._reporter)
        self._name = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self._at_once = asyncio.Event()
        self._interrupts = 0
        self._welcomes = 0
        self._workers: Workers | None = None
        self._relay: Relay | None = None
        self._client: Client | None = None
        self._server: JobServer | None = None
        self._meeting: MeetingServer | None = None
        self._peer_watch: PeerWatch | None = None

    def _make_reporter(self) -> Reporter:
        options = self._options
        if options.log_dir is None:
            return Reporter(self._output, options.host)
        try:
            folder = host_folder(options.log_dir, options.job, options.host)
            reporter = Reporter(self._output, options.host, self._output.open_common_log(folder / "agent.log"))
            reporter.say(f"logs are in {folder}")
        except OSError as error:
            reporter = Reporter(self._output, options.host)
            reporter.say(f"warning: no log of this agent's own can be written: {error}")
        return reporter

    async def run(self) -> int:
        logging.getLogger(_PACKAGE).addHandler(self._log_handler)
        self._loop.set_exception_handler(self._on_bug)
        self._guard.watch(self._loop)
        signals = Signals(self._loop, self._options.drain_signals, self._leave_the_job, self._interrupted)
        if is_behind_a_first_shell():
            self._reporter.say(SHELL_IS_FIRST)
        life = asyncio.ensure_future(self._ending_with_its_errors(self._live()))
        try:
            ending = await self._ending
            await self._end_workers(ending)
            await self._leave(ending, life)
        finally:
            signals.close()
            life.cancel()
            await self._close()
        return ending.code

    async def _live(self) -> None:
        seat = await self._take_seat()
        options = self._options
        address = options.address or (seat.address if seat is not None else await self._find_address())
        self._meeting = MeetingServer(address)
        workers = self._workers = make_workers(
            options, self._environ, address, self._name, self._output, self._guard, self._reporter
        )
        relay = self._relay = Relay(workers.start, self._meeting, self._send, self._end, self._reporter, options)
        urls = options.urls
        if options.serves:
            relay.start_all()  # first: they import for longer than the server does
            self._server = await JobServer.start(address, options, seat.listener if seat is not None else None)
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
        except PortError as error:
            self._end(Ending(exits.USAGE, str(error)))
        except AuthorizationError as error:
            self._end(Ending(exits.REFUSED, str(error)))
        except RendezvousError as error:
            self._end(Ending(exits.UNREACHABLE, str(error)))
        except (ElasticError, OSError) as error:
            self._end(Ending(exits.USAGE, str(error)))
        except Exception:
            self._end(Ending(exits.BUG, "the agent has failed", traceback.format_exc()))

    async def _find_address(self) -> str:
        """The server's name may not be known yet, where it and this agent start at the same time."""
        deadline = self._loop.time() + self._options.rendezvous_timeout
        while True:
            try:
                return await self._loop.run_in_executor(None, address_towards_any, self._options.urls)
            except OSError as error:
                if self._loop.time() + _LOOK_AGAIN > deadline:
                    raise RendezvousError(
                        f"there is no way to {', '.join(self._options.urls)}: {error}. Looked for"
                        f" {self._options.rendezvous_timeout:.0f} s (--rendezvous-timeout). Check the name and the network"
                    ) from None
            await asyncio.sleep(_LOOK_AGAIN)

    def _invite(self, url: str) -> None:
        options = self._options
        self._reporter.say(
            f"serving job {options.job!r} for {options.min} to {options.max} workers at {url}; further agents join with"
            f" --rendezvous {url} --job {options.job}{' --token-file FILE' if options.access.token_file else ''}"
        )

    def _hello(self) -> Hello:
        assert self._relay is not None
        options = self._options
        spec = None
        if options.describes_job:
            spec = JobSpec(
                min=options.min,
                max=options.max,
                max_restarts=options.max_restarts,
                min_timeout=options.min_timeout,
                hang_timeout=options.hang_timeout,
                shutdown_timeout=options.shutdown_timeout,
            )
        return self._relay.hello(self._name, options.host, spec)

    def _send(self, message: ToServer) -> None:
        if self._client is not None:
            self._client.send(message)

    def _extend_lease(self, until: float) -> None:
        if self._relay is not None:
            self._relay.slots.extend_lease(until)

    def _heard(self, message: ToAgent) -> None:
        assert self._relay is not None
        if isinstance(message, Welcome):
            self._welcomes += 1
            if self._welcomes > 1:
                self._reporter.say("connected to the rendezvous server again")
        self._relay.take(message)
        if self._welcomes == 1 and isinstance(message, Welcome) and not self._options.serves:
            self._relay.start_all()

    async def _watch(self, client: Client) -> None:
        """Looks after what nothing tells. A lost server ends nothing as long as workers live: an intact ring goes on."""
        while True:
            await asyncio.sleep(_WATCH_PERIOD)
            assert self._relay is not None
            self._relay.tick()
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
            if not self._relay.slots:
                gone = self._loop.time() - client.disconnected_since
                if gone > self._options.rendezvous_timeout:
                    text = f"the rendezvous server has been gone for {gone:.0f} s, and no worker is left here"
                    self._end(Ending(exits.UNREACHABLE, text))

    def _leave_the_job(self, why: str) -> None:
        if self._ending.done() or (self._relay is not None and self._relay.draining):
            return
        self._reporter.say(f"{why}: this agent's workers leave the job")
        if self._relay is None:
            self._end(Ending(exits.SUCCESS, "drained before any worker was started"))
            return
        limit = self._options.shutdown_timeout
        self._loop.call_later(limit, self._end, Ending(exits.SUCCESS, f"drained, but not in order within {limit:g} s"))
        self._relay.drain_all()

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or (self._relay is not None and self._relay.draining):
            self._at_once.set()
            self._end(Ending(exits.INTERRUPTED, "ended at once"))
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

    async def _end_workers(self, ending: Ending) -> None:
        if self._relay is None:
            return
        self._relay.close()
        slots = self._relay.slots
        if ending.ask is not None:
            for worker in slots:
                worker.stop(ending.ask)
        if slots and ending.patience > 0:
            ended = asyncio.ensure_future(slots.wait_until_empty(ending.patience))
            hurried = asyncio.ensure_future(self._at_once.wait())
            await asyncio.wait([ended, hurried], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            hurried.cancel()
        if slots:
            if ending.code == exits.SUCCESS:
                left = ", ".join(str(pid) for worker in slots for pid in worker.pids)
                self._reporter.say(f"killing the workers that have not ended within --shutdown-timeout: pid {left}")
            await slots.kill_all()
            for pid in [pid for worker in slots for pid in worker.pids]:
                self._reporter.say(
                    f"warning: pid {pid} does not end on SIGKILL: it is stuck in the kernel ({where_it_is_stuck(pid)})."
                    " This agent ends without it; if it stays, what it holds (a GPU, a mount) is free after a reboot"
                )
        await slots.drained()

    async def _leave(self, ending: Ending, life: asyncio.Future[None]) -> None:
        self._log_handler.setLevel(logging.CRITICAL)  # connections that end are no news from here on
        self._reporter.say(ending.last_words())
        if self._client is not None:
            await self._client.close()
            await asyncio.wait([life], timeout=2.0)
        if self._server is not None and not self._at_once.is_set():
            others = self._server.connected_agents
            if others and ending.code == exits.SUCCESS and self._relay is not None and self._relay.draining:
                self._reporter.say(
                    f"{others} other agents need the server in this agent: it goes on for {self._options.shutdown_timeout:g} s"
                )
            waiting = asyncio.ensure_future(self._server.wait_until_all_have_left(self._options.shutdown_timeout))
            hurried = asyncio.ensure_future(self._at_once.wait())
            await asyncio.wait([waiting, hurried], return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if waiting.done() and not waiting.result():
                self._reporter.say("other agents were still connected to the server in this one: they have lost it")
            waiting.cancel()

    async def _close(self) -> None:
        if self._workers is not None:
            await self._workers.close()
        if self._server is not None:
            with contextlib.suppress(Exception):
                await self._server.close()
        if self._meeting is not None:
            self._meeting.close()


def _passed_through_here(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(_LAUNCHER) for frame, _ in frames)
