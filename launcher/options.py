"""What the user asked for: one frozen dataclass, from flags and `ELASTIC_*` variables, checked once, here."""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from ..errors import UsageError
from ..rendezvous import worker_environment
from ..rendezvous.names import check_job_name
from .access import Access
from .address import AddressError, address_of_interface, checked_address, in_url
from .batch import nodes
from .batch.requeue import job_to_requeue
from .batch.scheduler import company, name_of_scheduler
from .batch.step import Step, find_step
from .devices import count_cpus, count_gpus
from .flags import own, slurm
from .flags.parsing import build_parser
from .flags.words import Said, Words, from_flags, from_variables
from .peer_selector import checked_selector
from .program import Program, find_program
from .self_joining import imported_names, joins_by_itself

DEFAULT_JOB = "default"
_NOT_FOR_DRAINING = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT)
_ON_CHANGE = ("auto", "in-process", "restart")
_ON = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Options:
    """Durations in seconds. `min` and `max` count workers of the job, `nproc` those of this agent.

    `urls` are the rendezvous servers, empty if this agent serves the job itself. `describes_job` says whether this agent has
    a say in what the job is: it serves it, or was given --min or --max. `address` is what everything binds and advertises,
    None for that of the route to the server. `pod` is the unique id of the Kubernetes pod that this is, empty outside of one.
    `watch_pods` is a label selector of this agent's peers, which it watches; empty to watch none.
    `command` is what a worker runs that takes part in the job itself. With `restarts`, workers run `program`, which is started
    again at each change; `uses_torch` and `preload` say what is imported ahead of that.
    `server_address` is where the server in this agent listens, None for `address`; it
    `outstays` the leaving of its own workers for as long as other agents need it. `drain_signals` drain as SIGTERM does.
    `requeued_job` is the number of a Slurm job that this agent puts back into the queue when `requeue` says so.
    Where `everybody_is_signalled`, as by a batch system, each process of the job gets its signals and not the agent alone.
    """

    command: tuple[str, ...]
    min: int = 1
    max: int = 1
    nproc: int = 1
    describes_job: bool = True
    job: str = DEFAULT_JOB
    urls: tuple[str, ...] = ()
    port: int = 0
    max_restarts: int = 3
    min_timeout: float = 600.0
    hang_timeout: float = 300.0
    shutdown_timeout: float = 30.0
    rendezvous_timeout: float = 60.0
    address: str | None = None
    server_address: str | None = None
    outstays: bool = False
    drain_signals: tuple[signal.Signals, ...] = ()
    requeue: str = "preempted"
    requeued_job: str = ""
    everybody_is_signalled: bool = False
    host: str = "localhost"
    pod: str = ""
    watch_pods: str = ""
    log_dir: Path | None = None
    program: Program | None = None
    restarts: bool = False
    uses_torch: bool = False
    preload: tuple[str, ...] = ()
    role: str = "default"
    virtual_local_rank: bool = False
    access: Access = field(default_factory=Access)

    @property
    def serves(self) -> bool:
        return not self.urls


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Raises SystemExit(2), after a message that says what to do, for everything that cannot work."""
    parser = build_parser()
    flags = parser.parse_args(arguments)
    words = ChainMap({}, *_origins(flags, environ))
    return _Asked(parser, flags, words, environ).options()


def _origins(flags: argparse.Namespace, environ: Mapping[str, str]) -> list[dict[str, Said]]:
    """What was said, by whom; who comes first has the last word."""
    return [from_flags(flags, own.NAMES), from_variables(environ, own.NAMES), slurm.said(environ)]


class _Asked:
    """What was said, made into options. Every method ends in SystemExit where a value cannot work."""

    def __init__(
        self, parser: argparse.ArgumentParser, flags: argparse.Namespace, words: Words, environ: Mapping[str, str]
    ) -> None:
        self._parser = parser
        self._flags = flags
        self._words = words
        self._environ = environ
        self._step: Step | None = None  # of several agents that meet in it, at the server in one of them

    def options(self) -> Options:
        program = self._program()
        names = imported_names(program)
        urls = self._urls()
        minimum, maximum, nproc = self._sizes(serves=not urls)
        return Options(
            command=program.command(),
            program=program,
            restarts=self._restarts(names),
            uses_torch=program.kind == "executable" or "torch" in names,
            preload=self._preload(),
            min=minimum,
            max=maximum,
            nproc=nproc,
            # All agents of a step say the same, and a stranger's server at its place is to say that it does not know the job.
            describes_job=not urls or (not self._step and not {"min", "max"}.isdisjoint(self._words)),
            job=self._job(),
            urls=urls,
            port=self._port(serves=not urls),
            max_restarts=self._count("max_restarts", least=0, default=3),
            min_timeout=self._seconds("min_timeout", 600.0),
            hang_timeout=self._seconds("hang_timeout", 300.0),
            shutdown_timeout=self._seconds("shutdown_timeout", 30.0),
            rendezvous_timeout=self._seconds("rendezvous_timeout", 60.0),
            address=self._address(serves=not urls),
            server_address=self._server_address(serves=not urls),
            outstays=self._step is not None,
            drain_signals=self._drain_signals(),
            requeue=self._choice("requeue", ("preempted", "always", "never")),
            requeued_job=job_to_requeue(self._environ),
            everybody_is_signalled=bool(name_of_scheduler(self._environ)),
            host=self._environ.get(worker_environment.HOST) or socket.gethostname(),
            pod=self._environ.get(worker_environment.POD, ""),
            watch_pods=self._watch_pods(),
            log_dir=self._log_dir(),
            access=self._access(urls),
        )

    def _fail(self, message: str) -> NoReturn:
        self._parser.error(message)

    def _text(self, name: str) -> Said | None:
        return self._words.get(name)

    def _count(self, name: str, least: int, default: int) -> int:
        given = self._text(name)
        if given is None:
            return default
        value, where = given
        try:
            count = int(value)
        except ValueError:
            count = least - 1
        if count < least:
            self._fail(f"{where} is {value!r}: give a whole number of at least {least}")
        return count

    def _seconds(self, name: str, default: float) -> float:
        given = self._text(name)
        if given is None:
            return default
        value, where = given
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self._fail(f"{where} is {value!r}: give a number of seconds above 0")
        return seconds

    def _sizes(self, serves: bool) -> tuple[int, int, int]:
        """`min`, `max` and `nproc`, which lean on each other where they were not given."""
        nproc = self._nproc()
        minimum = self._count("min", least=1, default=1)
        maximum = self._count("max", least=1, default=0)
        agents = self._step.tasks if self._step is not None else 1
        here = nproc or (0 if maximum and serves and agents == 1 else count_gpus(self._environ) or 1)
        if maximum:
            most = f"--max {maximum}"
        else:
            maximum = here * agents
            each = f", for each of {agents} tasks" if agents > 1 else ""
            what = "--nproc-per-node" if nproc else "the GPUs of this host, or 1"
            most = f"--max {maximum} (the default: {what}{each})"
        nproc = nproc or min(maximum, here or maximum)
        if minimum > maximum and (serves or self._text("min") is not None):
            self._fail(f"--min {minimum} is above {most}: raise --max or lower --min")
        if nproc > maximum:
            self._fail(f"--nproc-per-node {nproc} is above {most}: raise --max or lower --nproc-per-node")
        return minimum, maximum, nproc

    def _nproc(self) -> int:
        """0 if it was not given."""
        given = self._text("nproc_per_node")
        if given is None:
            return 0
        value, where = given
        if value == "cpu":
            return count_cpus()
        if value in ("gpu", "auto"):
            gpus = count_gpus(self._environ)
            if gpus == 0 and value == "gpu":
                self._fail(f"{where} is 'gpu', but this host has no NVIDIA GPU: give a number, or auto")
            return gpus or 1
        try:
            count = int(value)
        except ValueError:
            count = 0
        if count < 1:
            self._fail(f"{where} is {value!r}: give a whole number of at least 1, or auto, gpu or cpu")
        return count

    def _urls(self) -> tuple[str, ...]:
        given = self._text("rendezvous")
        standalone = self._text("standalone")
        if standalone is not None and standalone[0].lower() not in _ON:
            self._fail(f"{standalone[1]} is {standalone[0]!r}: give 1 or 0")
        alone = standalone is not None and _ON[standalone[0].lower()]
        if given is not None and alone:
            self._fail(f"{given[1]} and --standalone contradict each other: leave one of them out")
        if given is not None:
            return tuple(self._checked_url(url.strip(), given[1]) for url in given[0].split(","))
        if alone:
            return ()
        step = find_step(self._environ)
        if step is not None and step.tasks > 1:
            self._step = step
            return () if step.serves else (self._url_in(step),)
        beside = company(self._environ)
        if beside:
            self._fail(
                f"{beside}, and no --rendezvous was given: each would train on its own. Start elastic-rendezvous, and"
                " give its --rendezvous http://HOST:PORT to all, or --standalone if that is what you want"
                + (". Put srun in front, and they find each other by themselves" if "srun" in beside else "")
            )
        if self._environ.get("KUBERNETES_SERVICE_HOST"):
            self._fail(
                "this is a pod, and no --rendezvous was given: it would train on its own, beside its peers. Give"
                " --rendezvous http://SERVICE:PORT (or ELASTIC_RENDEZVOUS), or --standalone if that is what you want"
            )
        return ()

    def _url_in(self, step: Step) -> str:
        place = "127.0.0.1" if len(step.nodes) == 1 else nodes.place_of(step.nodes[0])
        return "http://" + in_url(place, self._port(serves=False))

    def _checked_url(self, url: str, where: str) -> str:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname and parts.port) and parts.path in ("", "/")
        except ValueError:
            good = False
        if not good:
            self._fail(f"{where} is {url!r}: give it as http://HOST:PORT (an IPv6 address in brackets)")
        return url.rstrip("/")

    def _port(self, serves: bool) -> int:
        port = self._count("port", least=0, default=self._step.port if self._step is not None else 0)
        if port > 65535:
            self._fail(f"--port is {port}: give a port from 1 to 65535, or 0 for any free one")
        if port and not serves and self._step is None:
            self._fail("--port is for the server in this agent, but --rendezvous names another server: leave one out")
        return port

    def _job(self) -> str:
        value, where = self._text("job") or (DEFAULT_JOB, "--job")
        try:
            return check_job_name(value)
        except UsageError as error:
            self._fail(f"{where}: {error}")

    def _address(self, serves: bool) -> str | None:
        advertised = self._text("advertise_address")
        interface = self._text("network_interface")
        if advertised is not None and interface is not None:
            if advertised[1].startswith("--") and interface[1].startswith("--"):
                self._fail("--advertise-address and --network-interface say the same thing: leave one of them out")
            if interface[1].startswith("--"):
                advertised = None
        try:
            if advertised is not None:
                return checked_address(advertised[0])
            if interface is not None:
                return address_of_interface(interface[0])
        except AddressError as error:
            self._fail(str(error))
        return "127.0.0.1" if serves and self._step is None else self._server_address(serves)

    def _server_address(self, serves: bool) -> str | None:
        """Only in a step: where its other agents look for the server, whichever network the workers use."""
        if not serves or self._step is None:
            return None
        try:
            return nodes.own_address(self._step.node, self._step.nodes)
        except AddressError as error:
            self._fail(str(error))

    def _choice(self, name: str, choices: Sequence[str]) -> str:
        """The first one if nothing was said."""
        value, where = self._text(name) or (choices[0], "")
        if value not in choices:
            self._fail(f"{where} is {value!r}: give {', '.join(choices[:-1])} or {choices[-1]}")
        return value

    def _drain_signals(self) -> tuple[signal.Signals, ...]:
        value, where = self._text("drain_signals") or ("", "")
        found = []
        for name in filter(None, (part.strip().upper() for part in value.split(","))):
            number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
            if not isinstance(number, signal.Signals) or number in _NOT_FOR_DRAINING:
                self._fail(f"{where} is {value!r}: give signals that may be caught, such as USR1, or USR1,USR2")
            found.append(number)
        return tuple(found)

    def _watch_pods(self) -> str:
        given = self._text("watch_pods")
        if given is None:
            return ""
        try:
            return checked_selector(given[0])
        except UsageError as error:
            self._fail(f"{given[1]}: {error}")

    def _log_dir(self) -> Path | None:
        given = self._text("log_dir")
        if given is None:
            return None
        folder, where = Path(given[0]), given[1]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._fail(f"{where} is {given[0]!r}, which cannot be used: {error.strerror}")
        if not os.access(folder, os.W_OK | os.X_OK):
            self._fail(f"{where} is {given[0]!r}, which cannot be written to")
        return folder.absolute()

    def _access(self, urls: Sequence[str]) -> Access:
        given = {name: self._text(name) for name in ("token_file", "tls_ca", "tls_cert", "tls_key")}
        access = Access(**{name: Path(text[0]).absolute() for name, text in given.items() if text is not None})
        tls_flags = [text[1] for name, text in given.items() if text and name != "token_file" and text[1][:2] == "--"]
        try:
            access.check(urls, tls_flags)
        except UsageError as error:
            self._fail(str(error))
        return access

    def _restarts(self, names: set[str]) -> bool:
        value, where = self._text("on_change") or ("auto", "--on-change")
        if value not in _ON_CHANGE:
            self._fail(f"{where} is {value!r}: give {', '.join(_ON_CHANGE[:-1])} or {_ON_CHANGE[-1]}")
        return value == "restart" or (value == "auto" and not joins_by_itself(names))

    def _preload(self) -> tuple[str, ...]:
        given = self._text("preload")
        return tuple(name.strip() for name in given.value.split(",") if name.strip()) if given else ()

    def _program(self) -> Program:
        try:
            return find_program(self._flags.script, self._flags.args, as_module=self._flags.module)
        except UsageError as error:
            self._fail(str(error))
