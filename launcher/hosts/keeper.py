"""Keeps an agent on every host that is listed and may be used: asks for the list, acts on it, judges how agents end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection

from .. import exits
from ..adopted import reap_adopted
from ..guarding import Guard
from ..options import Options
from ..reporter import Reporter
from .asked import HostsAsked
from .discovery import DiscoveryError, DiscoveryScript, FixedHosts, Source
from .fleet import Fleet
from .host_agent import HostAgent
from .listing import Host
from .plan import in_words, plan, room
from .roster import Roster

logger = logging.getLogger(__name__)

_POLL_PERIOD = 1.0  # seconds, as Horovod asks its discovery script
_SLACK = 5.0  # seconds that an agent may take longer to reach the server than its host has for it


class HostKeeper:
    """`too_few` is called with the reason when the hosts that can still be used have fewer slots than the job's min."""

    def __init__(
        self,
        asked: HostsAsked,
        options: Options,
        guard: Guard,
        reporter: Reporter,
        make_fleet: Callable[[Callable[[str, HostAgent, int], None]], Fleet],
        too_few: Callable[[str], None],
        is_over: Callable[[], bool],
    ) -> None:
        self.fleet = make_fleet(self._agent_ended)
        self._asked = asked
        self._guard = guard
        self._options = options
        self._reporter = reporter
        self._too_few = too_few
        self._is_over = is_over
        self._loop = asyncio.get_running_loop()
        self._roster = Roster(asked.cooldown, random.random, options.rendezvous_timeout)
        fixed = FixedHosts(asked.fixed)
        self._source: Source = DiscoveryScript(asked.script, asked.slots, guard) if asked.script else fixed
        self._closing = False

    def close(self) -> None:
        """No agent is started from here on, and none is missed."""
        self._closing = True

    async def start(self) -> None:
        """DiscoveryError if the first list cannot be had."""
        await self._take(await self._source.hosts())

    async def keep_asking(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(_POLL_PERIOD)
            reap_adopted(known={self._guard.pid, *self.fleet.pids})  # while no script runs, which asyncio waits for
            hosts = self._roster.listed
            try:
                hosts = await self._source.hosts()
            except DiscoveryError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    self._reporter.say(f"{trouble}. Its last good answer stands")
            else:
                if trouble:
                    self._reporter.say("the host discovery script answers again")
                trouble = ""
            await self._take(hosts)

    def seen(self, hosts: Collection[str]) -> None:
        """The server has heard from workers on these hosts; agents that should have come by now are given up."""
        late = self._loop.time() - _SLACK
        for name in self.fleet.names:
            if name in hosts:
                self._roster.joined(name)
            elif self._roster.is_late(name, late):
                self._reporter.say(f"the agent on {name} has not reached this launcher in time (--start-timeout)")
                self.fleet.kill(name)

    async def _take(self, hosts: tuple[Host, ...]) -> None:
        if hosts != self._roster.listed:
            logger.info("hosts: %s", ", ".join(f"{host.name}:{host.slots}" for host in hosts) or "none")
        for text in self._roster.take_list(hosts, self._loop.time()):
            self._reporter.say(text)
        await self.fleet.look_up([host.name for host in hosts])
        if not self._closing:
            self._act()

    def _act(self) -> None:
        now = self._loop.time()
        listed = self._roster.listed
        for action in plan(listed, self._roster.barred(now), self.fleet.present(), self._options.max):
            logger.info("%s", in_words(action))
            self.fleet.carry_out(action)
            if action.host in self.fleet.names:
                self._roster.starting(action.host, now)
        if not self._asked.script:
            left = room(listed, self._roster.lost_for_good())
            if left < self._options.min:
                slots = "1 slot is" if left == 1 else f"{left} slots are"
                self._too_few(
                    f"{slots} left on the hosts that can be used, fewer than the job's min of {self._options.min}: name"
                    " more hosts, lower --min-np, or let hosts that failed come back with --blacklist-cooldown-range"
                )

    def _agent_ended(self, name: str, agent: HostAgent, code: int) -> None:
        if self._closing or agent.leaving or self._is_over():
            return
        if code == exits.SUCCESS:
            self._reporter.say(f"the agent on {name} was drained: the host is left alone until it was off the list")
            self._roster.left(name)
            return
        last = [line for line in agent.tail().splitlines() if line.strip() and not line.endswith(f"exit code {code}")][
            -1:
        ]
        shells = code in self._asked.shell.unreached and not self.fleet.is_here(name)
        unreached = shells and self._roster.is_starting(name)
        if unreached:
            why = "it cannot be reached"
        elif shells:
            why = "the connection to its agent, or the agent itself, has ended"
        else:
            why = f"its agent has ended with {exits.in_words(code)}"
        self._roster.failed(name, ": ".join([why, *last]), self._loop.time(), unreached)
