"""The agents of one launcher: starts them on this host and, over a remote shell, on others, and has them do what is planned."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ...errors import UsageError
from ...rendezvous.host_port import host_port
from ..guarding import Guard
from ..options import Options
from ..output.room import Output
from .asked import HostsAsked
from .assignment import Assignment, encode, exported
from .calls import Calls
from .host_agent import HostAgent
from .places import Place, find_place
from .plan import Action, Present, Resize, Start

_AGENT = ("-m", "elastic_launch.launcher.hosts.remote")
_FOR_THE_INTERPRETER = ("PYTHONPATH", "LD_LIBRARY_PATH")  # what Python itself needs before it can be told anything


class Fleet:
    """`port` and `token` are of the job's server in this process, `calls` is for agents that have no standard input.

    `on_end` is told a host, its agent, and the exit code.
    """

    def __init__(
        self,
        asked: HostsAsked,
        options: Options,
        environ: Mapping[str, str],
        port: int,
        token: str,
        calls: Calls | None,
        output: Output,
        guard: Guard,
        on_end: Callable[[str, HostAgent, int], None],
    ) -> None:
        self._asked = asked
        self._options = options
        self._environ = environ
        self._port = port
        self._token = token
        self._calls = calls
        self._output = output
        self._guard = guard
        self._on_end = on_end
        self._places: dict[str, Place] = {}  # of the hosts that are listed
        self._agents: dict[str, HostAgent] = {}
        self._dead: list[HostAgent] = []  # whose last output is still on its way
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._agents)

    @property
    def names(self) -> list[str]:
        return [*self._agents]

    @property
    def pids(self) -> set[int]:
        return {agent.pid for agent in self._agents.values()}

    def present(self) -> dict[str, Present]:
        """By host, in the order of their starts."""
        return {name: agent.present for name, agent in self._agents.items()}

    def is_here(self, name: str) -> bool:
        """Whether that host is this one."""
        return name in self._places and self._places[name].is_here

    async def look_up(self, names: Sequence[str]) -> None:
        """To be called with all listed hosts before agents are started on any of them. Names may be slow to look up."""
        known = {name: self._places[name] for name in names if name in self._places}
        fresh = [name for name in names if name not in known]
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(None, find_place, name, names) for name in fresh))
        self._places = {**known, **dict(zip(fresh, found, strict=True))}

    def carry_out(self, action: Action) -> None:
        """OSError if an agent's process cannot be started, UsageError if there is no remote shell."""
        if isinstance(action, Start):
            self._start(action.host, action.slots)
        elif isinstance(action, Resize):
            self._agents[action.host].resize(action.slots)
        else:
            self._agents[action.host].drain()

    def drain_all(self) -> None:
        for agent in self._agents.values():
            agent.drain()

    def end_all(self) -> None:
        """At once."""
        for agent in self._agents.values():
            agent.end()

    def kill(self, name: str) -> None:
        self._agents[name].kill()

    async def wait_until_empty(self, limit: float) -> bool:
        """False if agents are still there after `limit` seconds."""
        try:
            await asyncio.wait_for(self._wait_until_empty(), limit)
        except asyncio.TimeoutError:
            return False
        return True

    async def drained(self) -> None:
        """Returns when the output of those that have ended has been passed on."""
        await asyncio.gather(*(agent.drained() for agent in self._dead))

    def _start(self, name: str, slots: int) -> None:
        place, own = self._places[name], self._options.address
        addresses = place.addresses if own is None else (own,)
        command: tuple[str, ...] = (sys.executable, *_AGENT)
        invitation: tuple[str, ...] = ()
        if not place.is_here:
            self._check_shell(name)
            variables = [f"{word}={self._environ[word]}" for word in _FOR_THE_INTERPRETER if self._environ.get(word)]
            if self._calls is not None:
                invitation = self._calls.invite(addresses, lambda caller: self._agents[name].answer(caller))
            command = self._asked.shell.words(name, ("exec", "env", *variables, *command, *invitation))
        assignment = encode(
            Assignment(
                options=self._options_for(name, slots, addresses),
                environment={} if place.is_here else exported(self._environ),
                folder=os.getcwd(),
                token=self._token,
                interfaces=self._asked.interfaces,
            )
        )

        def ended(agent: HostAgent, code: int) -> None:
            if self._calls is not None and invitation:
                self._calls.withdraw(invitation)
            self._ended(name, agent, code)

        self._agents[name] = HostAgent(command, assignment, slots, self._output, self._guard, ended)

    def _check_shell(self, name: str) -> None:
        program = self._asked.shell.command[0]
        if shutil.which(program) is None:
            raise UsageError(
                f"host {name} cannot be reached without {program!r}, which is no program here: install the OpenSSH client,"
                " or give another command with --remote-shell"
            )

    def _options_for(self, name: str, slots: int, addresses: Iterable[str]) -> Options:
        return replace(
            self._options,
            nproc=slots,
            urls=tuple(f"http://{host_port(address, self._port)}" for address in addresses),
            port=0,
            host=name,
            hosts=None,
            address=None,
            requeued_job="",
        )

    def _ended(self, name: str, agent: HostAgent, code: int) -> None:
        del self._agents[name]
        self._dead = [*(dead for dead in self._dead if not dead.is_drained), agent]
        self._changed.set()
        self._on_end(name, agent, code)
        self._places.pop(name, None)  # it may come back with another address

    async def _wait_until_empty(self) -> None:
        while self._agents:
            self._changed.clear()
            await self._changed.wait()
