"""The workers of an agent, of the kind that its program asks for."""

from __future__ import annotations

import importlib.machinery
import ipaddress
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ..rendezvous import worker_environment
from ..rendezvous.scratch import scratch_folder
from .address import interface_with
from .guarding import Guard
from .options import Options
from .output.room import Output
from .reporter import Reporter
from .restarting.environment import ScriptSettings
from .restarting.fork_server import ForkServer
from .restarting.keeper import Keeper, KeeperSettings
from .restarting.scripts import Scripts
from .worker import Hooks, Worker
from .worker_process import Surroundings, WorkerProcess, without_other_launchers
from .worker_record import WorkerRecord

if TYPE_CHECKING:
    from .horovod.script import Leading

_SLOW_IMPORTS = ("torch", "torch._dynamo", "numpy")  # the second is what the first optimizer imports


class Workers(ABC):
    """Starts workers. Nothing of it is left after `close`."""

    @abstractmethod
    def start(self, record: WorkerRecord, hooks: Hooks) -> Worker:
        """OSError if it cannot be started."""

    @abstractmethod
    def resize(self, slots: int) -> None:
        """There are so many slots from here on; workers that have been started keep what they were told."""

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """Processes that are no worker's."""

    @abstractmethod
    async def close(self) -> None: ...


class JoiningWorkers(Workers):
    """Processes that take part in the job themselves."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def start(self, record: WorkerRecord, hooks: Hooks) -> Worker:
        return WorkerProcess(self._surroundings, record, hooks)

    def resize(self, slots: int) -> None:
        self._surroundings = replace(self._surroundings, slots=slots)

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    async def close(self) -> None:
        pass


class RestartedWorkers(Workers):
    """Keepers, which start scripts."""

    def __init__(
        self, options: Options, surroundings: Surroundings, agent: str, reporter: Reporter, modules: tuple[str, ...]
    ) -> None:
        assert options.program is not None
        environ = _on_its_network(without_other_launchers(surroundings.environ), surroundings.address)
        output, guard = surroundings.output, surroundings.guard
        self._fork_server = ForkServer(modules, environ, output, guard, reporter)
        self._leftovers = ExitStack()
        scratch = self._leftovers.enter_context(scratch_folder("elastic-launch-"))
        scripts = Scripts(options.program, environ, output, guard, self._fork_server, "torch" in modules)
        self._leading = _leading(options, agent, surroundings.address, reporter) if options.real_horovod else None
        words = ScriptSettings(options.job, options.role, options.max_restarts, options.virtual_local_rank)
        self._settings = KeeperSettings(
            agent=agent,
            job=options.job,
            host=options.host,
            address=surroundings.address,
            shutdown_timeout=options.shutdown_timeout,
            scripts=scripts,
            words=words,
            scratch=scratch,
            log_dir=options.log_dir,
            reporter=reporter,
            node=options.node,
            leading=self._leading,
        )

    def start(self, record: WorkerRecord, hooks: Hooks) -> Worker:
        return Keeper(self._settings, record, hooks)

    def resize(self, slots: int) -> None:
        pass  # scripts are told their world at each start

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._fork_server.pid,)

    async def close(self) -> None:
        await self._fork_server.close()
        if self._leading is not None:
            await self._leading.close()
        self._leftovers.close()


def _leading(options: Options, agent: str, address: str, reporter: Reporter) -> Leading:
    from .horovod.environment import host_name
    from .horovod.script import Leading

    return Leading(host_name(options.host, agent), address, reporter)


def make_workers(
    options: Options,
    environ: Mapping[str, str],
    address: str,
    agent: str,
    output: Output,
    guard: Guard,
    reporter: Reporter,
) -> Workers:
    surroundings = Surroundings(
        command=options.command,
        environ=_with_signals(options, _as_asked(options, _with_threads_bounded(options, environ, reporter))),
        job=options.job,
        host=options.host,
        address=address,
        slots=options.nproc,
        output=output,
        guard=guard,
        log_dir=options.log_dir,
    )
    if options.real_horovod and not options.restarts:
        # An HTTP server comes with it, which other agents that do not serve their job do without.
        from .horovod.workers import HorovodWorkers

        on_its_network = _on_its_network(surroundings.environ, surroundings.address)
        return HorovodWorkers(options, replace(surroundings, environ=on_its_network), agent, reporter)
    if not options.restarts:
        return JoiningWorkers(surroundings)
    modules = [name for name in _SLOW_IMPORTS if options.uses_torch and _is_there(name)]
    return RestartedWorkers(options, surroundings, agent, reporter, (*modules, *options.preload))


def _with_threads_bounded(options: Options, environ: Mapping[str, str], reporter: Reporter) -> Mapping[str, str]:
    if options.nproc == 1 or "OMP_NUM_THREADS" in environ:
        return environ
    reporter.say("OMP_NUM_THREADS is 1 for each worker, as several share this host: set it to choose otherwise")
    return {**environ, "OMP_NUM_THREADS": "1"}


def _as_asked(options: Options, environ: Mapping[str, str]) -> Mapping[str, str]:
    asked = {
        worker_environment.NUMA_BINDING: options.numa_binding,
        worker_environment.BACKEND: options.backend,
        **options.horovods_variables,
    }
    return {**environ, **{name: value for name, value in asked.items() if value}}


def _on_its_network(environ: Mapping[str, str], address: str) -> Mapping[str, str]:
    """Scripts' own connections take the interface that this agent's address is on.

    Gloo would look the host's name up, which many a host's own /etc/hosts gives to the loopback; NCCL would take the first
    interface that it likes. Whoever has said which one has the word.
    """
    interface = interface_with(address)
    if not interface:
        return environ
    names = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]
    if not ipaddress.ip_address(
        address.partition("%")[0]
    ).is_loopback:  # NCCL may need more than that, even on one host
        names.append("NCCL_SOCKET_IFNAME")
    return {**dict.fromkeys(names, interface), **environ}


def _with_signals(options: Options, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Those that reach the workers too, and that they leave to this agent."""
    if not options.everybody_is_signalled:
        return environ
    names = ",".join(signal.Signals(number).name for number in options.drain_signals)
    return {**environ, worker_environment.AGENT_ANSWERS: names}


def _is_there(module: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(module.partition(".")[0]) is not None
