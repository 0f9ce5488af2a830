"""The launcher's life: serve the job, have agents kept on its hosts until it is over, end all in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from ...errors import ElasticError
from ...rendezvous.messages import Failed
from .. import exits
from ..ending import Ending
from ..guarding import Guard
from ..logs import ReporterHandler
from ..options import Options
from ..output.room import Output
from ..reporter import Reporter
from ..serving import JobServer, PortError, job_spec
from ..signals import Signals
from .asked import HostsAsked
from .calls import Calls
from .discovery import DiscoveryError
from .fleet import Fleet
from .keeper import HostKeeper
from .places import LOOPBACK, is_this_host
from .secret_file import secret_file

_EVERY_ADDRESS = ("::", "0.0.0.0")  # the second where there is no IPv6
_GLANCE = 0.2  # seconds between two looks at the job
_SLACK = 5.0  # seconds that a job may take longer to end than its workers
_KILL_LIMIT = 5.0  # seconds for agents that are told to end at once


class JobLauncher:
    """One launcher. `run` returns the exit code, when no agent of it is left on any host that could be reached."""

    def __init__(
        self, asked: HostsAsked, options: Options, environ: Mapping[str, str], guard: Guard, output: Output
    ) -> None:
        self._asked = asked
        self._options = options
        self._environ = environ
        self._guard = guard
        self._output = output
        self._reporter = Reporter(output, options.host)
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self._server: JobServer | None = None
        self._calls: Calls | None = None
        self._keeper: HostKeeper | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._has_begun = False  # an agent has come
        self._draining = False
        self._interrupts = 0

    async def run(self) -> int:
        ReporterHandler(self._reporter, self._options.shown_level)
        self._loop.set_exception_handler(self._on_bug)
        self._guard.watch(self._loop)
        signals = Signals(self._loop, self._options.drain_signals, self._terminated, self._interrupted)
        life = asyncio.ensure_future(self._ending_with_its_errors())
        try:
            ending = await self._ending
            await self._end_agents(ending)
            self._reporter.say(ending.last_words())
        finally:
            signals.close()
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
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
        except DiscoveryError as error:
            self._end(Ending(exits.USAGE, f"{error}. It has to answer once before the job can start"))
        except (ElasticError, OSError) as error:
            self._end(Ending(exits.USAGE, str(error)))
        except Exception:
            self._end(Ending(exits.BUG, f"the launcher has failed\n{traceback.format_exc()}"))

    async def _live(self) -> None:
        token_file = self._options.access.token_file or secret_file(secrets.token_hex(32))
        options = replace(self._options, access=replace(self._options.access, token_file=token_file))
        self._server, address = await self._serve(options)
        if address not in _EVERY_ADDRESS:
            options = replace(options, address=address)
        if not self._asked.shell.passes_input:
            self._calls = await Calls.start(address)
        keeper = self._keeper = self._make_keeper(options, self._server.url)
        await keeper.start()
        hosts = self._asked.script or ", ".join(f"{host.name}:{host.slots}" for host in self._asked.fixed)
        self._reporter.say(f"job {options.job!r} for {options.min} to {options.max} workers, on the hosts of {hosts}")
        await asyncio.gather(keeper.keep_asking(), self._keep_looking(self._server, keeper))

    async def _serve(self, options: Options) -> tuple[JobServer, str]:
        """Listens at the one address that was given, else at all: hosts may be reached over different networks."""
        if options.address is not None:
            addresses = [options.address]
        elif self._asked.fixed and all(is_this_host(host.name) for host in self._asked.fixed):
            addresses = [LOOPBACK]
        else:
            addresses = [*_EVERY_ADDRESS]
        spec = job_spec(options)
        for address in addresses[:-1]:
            with contextlib.suppress(PortError):
                return await JobServer.start(address, options, spec), address
        return await JobServer.start(addresses[-1], options, spec), addresses[-1]

    def _make_keeper(self, options: Options, url: str) -> HostKeeper:
        tokens, port = options.access.tokens(), urlsplit(url).port
        assert tokens is not None and port is not None
        token = tokens.token()
        return HostKeeper(
            self._asked,
            options,
            self._guard,
            self._reporter,
            lambda on_end: Fleet(
                self._asked, options, self._environ, port, token, self._calls, self._output, self._guard, on_end
            ),
            self._fail,
            self._is_over,
        )

    # --- the job ---

    async def _keep_looking(self, server: JobServer, keeper: HostKeeper) -> None:
        while True:
            await asyncio.sleep(_GLANCE)
            job = server.job
            if job is None or self._is_over():
                self._end(self._outcome(None if job is None else job.failure))
                return
            hosts = {worker["host"] for worker in job.snapshot().get("workers", ())}
            self._has_begun = self._has_begun or bool(hosts)
            if not self._has_begun and self._loop.time() > self._since + self._options.min_timeout:
                self._fail(f"no agent has come within {self._options.min_timeout:g} s (--min-timeout)")
            keeper.seen(hosts)
            limit = self._asked.reset_limit
            resets = sum(job.tally.formed.values()) - 1
            if limit is not None and resets > limit and self._stopping is None:
                self._stop(1, f"the workers have changed {resets} times, and --reset-limit is {limit}")

    def _is_over(self) -> bool:
        job = self._server.job if self._server is not None else None
        return job is not None and job.snapshot()["state"] in ("done", "failed")

    def _outcome(self, failure: Failed | None) -> Ending:
        patience = self._options.shutdown_timeout + _SLACK
        if failure is None:
            return Ending(exits.SUCCESS, f"job {self._options.job!r} is done", patience=patience)
        return replace(Ending.failed(self._options.job, failure), patience=patience)

    def _fail(self, why: str) -> None:
        self._end(Ending(exits.TOO_FEW, f"job {self._options.job!r} has failed: {why}"))

    def _stop(self, code: int, reason: str) -> None:
        """The whole job ends in order, as a failure."""
        if self._keeper is not None:
            self._keeper.close()
        self._stopping = asyncio.ensure_future(self._stop_job(code, reason))
        limit = self._options.shutdown_timeout + _SLACK
        late = Ending(code, f"job {self._options.job!r} was stopped, but not in order within {limit:g} s: {reason}")
        self._loop.call_later(limit, self._end, late)

    async def _stop_job(self, code: int, reason: str) -> None:
        job = self._server.job if self._server is not None else None
        if job is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await job.command(lambda machine, now: machine.stop(code, reason, now))

    # --- signals ---

    def _terminated(self, why: str) -> None:
        if self._draining or self._ending.done():
            return
        self._draining = True
        self._reporter.say(f"{why}: the workers of all hosts leave the job")
        if self._keeper is not None:
            self._keeper.close()
            self._keeper.fleet.drain_all()
        limit = self._options.shutdown_timeout + _SLACK
        self._end(Ending(exits.SUCCESS, "drained: the workers have left the job", patience=limit))

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or self._ending.done():
            self._reporter.say("SIGINT: everything is ended at once")
            if self._keeper is not None:
                self._keeper.close()
                self._keeper.fleet.end_all()
            self._end(Ending(exits.INTERRUPTED, "ended at once"))
        elif not self._has_begun:
            self._end(Ending(exits.INTERRUPTED, "stopped before the job had started"))
        else:
            self._reporter.say("SIGINT: the job is being stopped in order; a second one ends everything at once")
            self._stop(exits.INTERRUPTED, f"SIGINT on {self._options.host}")

    # --- the end ---

    def _end(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    async def _end_agents(self, ending: Ending) -> None:
        if self._keeper is None:
            return
        self._keeper.close()
        fleet = self._keeper.fleet
        if not (ending.patience and await fleet.wait_until_empty(ending.patience)):
            fleet.end_all()
            if not await fleet.wait_until_empty(_KILL_LIMIT):
                self._reporter.say(f"agents that do not answer end by themselves, on {', '.join(fleet.names)}")
                for name in fleet.names:
                    fleet.kill(name)
                await fleet.wait_until_empty(_KILL_LIMIT)
        await fleet.drained()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        details = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._reporter.say(f"warning: {context.get('message')}\n{details}")
