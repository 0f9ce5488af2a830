"""The launcher's life: serve the job, keep an agent on every host that is listed, until the job is over; end all in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import ElasticError
from ...rendezvous.messages import Failed
from .. import exits
from ..adopted import reap_adopted
from ..guarding import Guard
from ..logs import show_log
from ..options import Options
from ..output import OutputThread
from ..reporter import Reporter
from ..serving import JobServer, PortError
from .asked import HostsAsked
from .calls import Calls
from .discovery import DiscoveryError, DiscoveryScript, FixedHosts
from .fleet import Fleet
from .host_agent import HostAgent
from .places import LOOPBACK, is_this_host
from .plan import in_words, plan, room
from .roster import Roster

logger = logging.getLogger(__name__)

_POLL_PERIOD = 1.0  # seconds, as Horovod asks its discovery script
_GLANCE = 0.2  # seconds between two looks at the job
_SLACK = 5.0  # seconds that a job may take longer to end than its workers
_KILL_LIMIT = 5.0  # seconds for agents that are told to end at once


@dataclass(frozen=True)
class _Ending:
    """`patience` is how long (seconds) the agents may take to end by themselves."""

    code: int
    text: str
    patience: float = 0.0


class JobLauncher:
    """One launcher. `run` returns the exit code, when no agent of it is left on any host that could be reached."""

    def __init__(
        self, asked: HostsAsked, options: Options, environ: Mapping[str, str], guard: Guard, output: OutputThread
    ) -> None:
        self._asked = asked
        self._options = options
        self._environ = environ
        self._guard = guard
        self._output = output
        self._reporter = Reporter(output, options.host)
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[_Ending] = self._loop.create_future()
        self._roster = Roster(asked.cooldown, random.random, options.rendezvous_timeout)
        self._script = DiscoveryScript(asked.script, asked.slots, guard) if asked.script else None
        self._source = self._script or FixedHosts(asked.fixed)
        self._server: JobServer | None = None
        self._fleet: Fleet | None = None
        self._calls: Calls | None = None
        self._since = self._loop.time()
        self._interrupts = 0
        self._closing = False  # no agent is started from here on
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> int:
        show_log(self._reporter, self._options.log_level)
        self._loop.set_exception_handler(self._on_bug)
        self._guard.watch(self._loop)
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._terminated, number)
        life = asyncio.ensure_future(self._ending_with_its_errors())
        try:
            ending = await self._ending
            self._closing = True
            await self._end_agents(ending)
            self._reporter.say(ending.text if ending.code == 0 else f"{ending.text}\nexit code {ending.code}")
        finally:
            life.cancel()
            if self._calls is not None:
                self._calls.close()
            if self._server is not None:
                with contextlib.suppress(Exception):
                    await self._server.close()
        return ending.code

    async def _ending_with_its_errors(self) -> None:
        try:
            await self._live()
        except asyncio.CancelledError:
            raise
        except (ElasticError, OSError) as error:
            self._end(_Ending(exits.USAGE, str(error)))
        except Exception:
            self._end(_Ending(exits.BUG, f"the launcher has failed\n{traceback.format_exc()}"))

    async def _live(self) -> None:
        token_file = self._options.access.token_file or _in_memory(secrets.token_hex(32))
        options = replace(self._options, access=replace(self._options.access, token_file=token_file))
        self._server, address = await self._serve(options)
        if not self._asked.shell.passes_input:
            self._calls = await Calls.start(address)
        tokens = options.access.tokens()
        assert tokens is not None
        port = urlsplit(self._server.url).port
        assert port is not None
        self._fleet = Fleet(
            self._asked,
            options,
            self._environ,
            port,
            tokens.token(),
            self._calls,
            self._output,
            self._guard,
            self._agent_ended,
        )
        try:
            self._take(await self._source.hosts())
        except DiscoveryError as error:
            self._end(_Ending(exits.USAGE, f"{error}. It has to answer once before the job can start"))
            return
        self._reporter.say(
            f"job {options.job!r} for {options.min} to {options.max} workers, on the hosts of"
            f" {self._asked.script or ', '.join(f'{host.name}:{host.slots}' for host in self._asked.fixed)}"
        )
        await asyncio.gather(self._keep_asking(), self._keep_looking(self._server, self._fleet))

    async def _serve(self, options: Options) -> tuple[JobServer, str]:
        """Listens at the one address that was given, else at all: hosts may be reached over different networks."""
        if options.address is not None:
            addresses = [options.address]
        elif self._asked.fixed and all(is_this_host(host.name) for host in self._asked.fixed):
            addresses = [LOOPBACK]
        else:
            addresses = ["::", "0.0.0.0"]  # the second where there is no IPv6
        for address in addresses[:-1]:
            with contextlib.suppress(PortError):
                return await JobServer.start(address, options), address
        return await JobServer.start(addresses[-1], options), addresses[-1]

    # --- hosts ---

    async def _keep_asking(self) -> None:
        troubled = ""
        while True:
            await asyncio.sleep(_POLL_PERIOD)
            try:
                hosts = await self._source.hosts()
            except DiscoveryError as error:
                if str(error) != troubled:
                    troubled = str(error)
                    self._reporter.say(f"{troubled}. Its last good answer stands")
                hosts = self._roster.listed
            else:
                if troubled:
                    self._reporter.say("the host discovery script answers again")
                troubled = ""
            self._take(hosts)

    def _take(self, hosts: tuple[Any, ...]) -> None:
        if hosts != self._roster.listed:
            listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts) or "none"
            logger.info("hosts: %s", listed)
        for text in self._roster.take_list(hosts, self._loop.time()):
            self._reporter.say(text)
        self._act()

    def _act(self) -> None:
        if self._closing or self._fleet is None:
            return
        now = self._loop.time()
        listed = self._roster.listed
        for action in plan(listed, self._roster.barred(now), self._fleet.present(), self._options.max):
            logger.info("%s", in_words(action))
            self._fleet.carry_out(action, [host.name for host in listed])
            if action.host in self._fleet.names:
                self._roster.starting(action.host, now)
        if not self._asked.script:
            left = room(listed, self._roster.lost_for_good())
            if left < self._options.min:
                text = f"{left} slots are left on the hosts that can be used, fewer than the job's min of {self._options.min}"
                self._end(_Ending(exits.TOO_FEW, f"job {self._options.job!r} has failed: {text}"))

    def _agent_ended(self, name: str, agent: HostAgent, code: int) -> None:
        if self._closing or agent.leaving or self._is_over():
            return
        if code == exits.SUCCESS:
            self._reporter.say(f"the agent on {name} was drained: the host is left alone until it was off the list")
            self._roster.left(name)
            return
        last = agent.tail().strip().splitlines()[-1:]
        unreached = self._roster.is_starting(name) and code in self._asked.shell.unreached and not is_this_host(name)
        if unreached:
            why = "it cannot be reached"
        elif code in self._asked.shell.unreached:
            why = "the connection to its agent, or the agent itself, has ended"
        else:
            why = f"its agent has ended with {exits.in_words(code)}"
        self._roster.failed(name, ": ".join([why, *last]), self._loop.time(), unreached)

    # --- the job ---

    async def _keep_looking(self, server: JobServer, fleet: Fleet) -> None:
        while True:
            await asyncio.sleep(_GLANCE)
            reap_adopted(
                known={self._guard.pid, *fleet.pids, *([self._script.pid] if self._script is not None else [])}
            )
            now = self._loop.time()
            job = server.job
            if job is None:
                if now > self._since + self._options.min_timeout:
                    text = (
                        f"no agent has come within {self._options.min_timeout:g} s (--min-timeout, --elastic-timeout)"
                    )
                    self._end(_Ending(exits.TOO_FEW, f"job {self._options.job!r} has failed: {text}"))
                continue
            snapshot = job.snapshot()
            if self._is_over():
                self._end(self._outcome(job.failure))
                return
            hosts = {worker["host"] for worker in snapshot.get("workers", ())}
            for name in fleet.names:
                if name in hosts:
                    self._roster.joined(name)
                elif self._roster.is_late(name, now - _SLACK):
                    self._reporter.say(f"the agent on {name} has not reached this launcher in time (--start-timeout)")
                    fleet.kill(name)
            limit = self._asked.reset_limit
            resets = sum(job.tally.formed.values()) - 1
            if limit is not None and resets > limit and self._stopping is None:
                self._stop(1, f"the workers have changed {resets} times, and --reset-limit is {limit}")

    def _is_over(self) -> bool:
        job = self._server.job if self._server is not None else None
        return job is not None and job.snapshot()["state"] in ("done", "failed")

    def _outcome(self, failure: Failed | None) -> _Ending:
        patience = self._options.shutdown_timeout + _SLACK
        if failure is None:
            return _Ending(exits.SUCCESS, f"job {self._options.job!r} is done", patience)
        if failure.code == exits.INTERRUPTED:
            return _Ending(failure.code, f"job {self._options.job!r} was stopped", patience)
        return _Ending(failure.code or 1, f"job {self._options.job!r} has failed: {failure.reason}", patience)

    def _stop(self, code: int, reason: str) -> None:
        """The whole job ends in order, as a failure."""
        self._closing = True
        self._stopping = asyncio.ensure_future(self._stop_job(code, reason))
        limit = self._options.shutdown_timeout + _SLACK
        late = _Ending(code, f"job {self._options.job!r} was stopped, but not in order within {limit:g} s: {reason}")
        self._loop.call_later(limit, self._end, late)

    async def _stop_job(self, code: int, reason: str) -> None:
        job = self._server.job if self._server is not None else None
        assert job is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await job.command(lambda machine, now: machine.stop(code, reason, now))

    # --- signals ---

    def _terminated(self, number: int) -> None:
        if self._closing:
            return
        self._closing = True
        self._reporter.say(f"{signal.Signals(number).name}: the workers of all hosts leave the job")
        limit = self._options.shutdown_timeout + _SLACK
        if self._fleet is not None:
            self._fleet.drain_all()
        self._end(_Ending(exits.SUCCESS, "drained: the workers have left the job", limit))

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or self._ending.done():
            self._reporter.say("SIGINT: everything is ended at once")
            if self._fleet is not None:
                self._fleet.end_all()
            self._end(_Ending(exits.INTERRUPTED, "ended at once"))
        elif self._server is None or self._server.job is None:
            self._end(_Ending(exits.INTERRUPTED, "stopped before the job had started"))
        else:
            self._reporter.say("SIGINT: the job is being stopped in order; a second one ends everything at once")
            self._stop(exits.INTERRUPTED, f"SIGINT on {self._options.host}")

    # --- the end ---

    def _end(self, ending: _Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    async def _end_agents(self, ending: _Ending) -> None:
        fleet = self._fleet
        if fleet is None:
            return
        if not (ending.patience and await fleet.wait_until_empty(ending.patience)):
            fleet.end_all()
            if not await fleet.wait_until_empty(_KILL_LIMIT):
                names = ", ".join(fleet.names)
                self._reporter.say(f"agents that do not answer are cut off, and end by themselves: {names}")
                for name in fleet.names:
                    fleet.kill(name)
                await fleet.wait_until_empty(_KILL_LIMIT)
        await fleet.drained()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._reporter.say(f"warning: {context.get('message')}\n{details}")


def _in_memory(token: str) -> Path:
    """A file that nobody else can read, and that ends with this process."""
    descriptor = os.memfd_create("token")
    os.write(descriptor, token.encode())
    return Path(f"/proc/self/fd/{descriptor}")
