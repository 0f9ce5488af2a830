"""What the user asked for: one frozen dataclass, from flags and `ELASTIC_*` variables, checked once, here."""

from __future__ import annotations

import argparse
import math
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from ..errors import UsageError
from ..rendezvous import worker_environment
from ..rendezvous.names import check_job_name
from .access import Access
from .address import AddressError, address_of_interface, checked_address
from .devices import count_gpus, workers_per_node
from .endpoint import Endpoint
from .flags import own, torchrun
from .flags.output_words import log_folder, output_settings
from .flags.parsing import build_parser
from .flags.words import Said, Words, flags_first, from_flags, from_variables, is_on
from .output.settings import OutputSettings
from .peer_selector import checked_selector
from .program import Program, checked_executable, find_program
from .self_joining import imported_names, joins_by_itself
from .signal_names import DRAINING, draining_signals

DEFAULT_JOB = "default"
_ON_CHANGE = ("auto", "in-process", "restart")


@dataclass(frozen=True)
class Options:
    """Durations in seconds. `min` and `max` count workers of the job, `nproc` those of this agent.

    `urls` are the rendezvous servers, empty if this agent serves the job itself, or finds out by `endpoint` where it is
    served. `describes_job` says whether this agent has
    a say in what the job is: it serves it, or was given --min or --max. `address` is what everything binds and advertises,
    None for that of the route to the server. `pod` is the unique id of the Kubernetes pod that this is, empty outside of one.
    `watch_pods` is a label selector of this agent's peers, which it watches; empty to watch none.
    `command` is what a worker runs that takes part in the job itself. With `restarts`, workers run `program`, which is started
    again at each change; `uses_torch` and `preload` say what is imported ahead of that. `drain_signals` (numbers) are those on
    which this agent's workers leave. `role` is the workers' ROLE_NAME; with `virtual_local_rank` each of them sees one GPU
    alone; `numa_binding` says how they are bound. `backend` is the ring for CPU tensors of those that join the
    job themselves. `verbose` shows the protocol, `quiet` leaves the summary out.
    """

    command: tuple[str, ...]
    min: int = 1
    max: int = 1
    nproc: int = 1
    describes_job: bool = True
    job: str = DEFAULT_JOB
    urls: tuple[str, ...] = ()
    endpoint: Endpoint | None = None
    port: int = 0
    max_restarts: int = 3
    min_timeout: float = 600.0
    hang_timeout: float = 300.0
    shutdown_timeout: float = 30.0
    rendezvous_timeout: float = 60.0
    address: str | None = None
    host: str = "localhost"
    pod: str = ""
    watch_pods: str = ""
    log_dir: Path | None = None
    drain_signals: tuple[int, ...] = DRAINING
    program: Program | None = None
    restarts: bool = False
    uses_torch: bool = False
    preload: tuple[str, ...] = ()
    role: str = "default"
    virtual_local_rank: bool = False
    output: OutputSettings = field(default_factory=OutputSettings)
    verbose: bool = False
    quiet: bool = False
    numa_binding: str = ""
    backend: str = ""
    access: Access = field(default_factory=Access)

    @property
    def serves(self) -> bool:
        return not self.urls


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Raises SystemExit(2), after a message that says what to do, for everything that cannot work. So it does after --check."""
    parser = build_parser()
    flags = parser.parse_args(arguments)
    try:
        asked = _Asked(parser, flags, flags_first(_origins(flags, environ)), environ)
    except UsageError as error:
        parser.error(str(error))
    if flags.check:
        sys.exit(asked.check())
    return asked.options()


def _origins(flags: argparse.Namespace, environ: Mapping[str, str]) -> list[dict[str, Said]]:
    """What was said, by whom; of two flags, or of two variables, the first one counts."""
    return [from_flags(flags, own.NAMES), from_variables(environ, own.NAMES), torchrun.said(flags, environ)]


class _Asked:
    """What was said, made into options. Every method ends in SystemExit where a value cannot work."""

    def __init__(
        self, parser: argparse.ArgumentParser, flags: argparse.Namespace, words: Words, environ: Mapping[str, str]
    ) -> None:
        self._parser = parser
        self._flags = flags
        self._words = words
        self._environ = environ

    def check(self) -> int:
        """The exit code."""
        from .checking.check import check

        in_a_lone_pod = bool(self._environ.get("KUBERNETES_SERVICE_HOST")) and not {"rendezvous", "standalone"} & {
            *self._words
        }
        urls = () if in_a_lone_pod else self._urls()
        return check(urls, self._job(), self._access(urls), self._environ, in_a_lone_pod)

    def options(self) -> Options:
        if self._flags.script is None:
            self._fail("the following arguments are required: script")
        program = self._program()
        names = imported_names(program)
        python = self._python()
        output = output_settings(self._words, self._fail, folds_tracebacks=not self._is_on("verbose"))
        endpoint = self._endpoint()
        urls = () if endpoint is not None else self._urls()
        serves = not urls and endpoint is None
        minimum, maximum, nproc = self._sizes(serves)
        return Options(
            command=program.command(python or sys.executable),
            program=program.under(python) if python else program,
            restarts=self._restarts(names),
            uses_torch=program.kind == "executable" or "torch" in names,
            preload=self._preload(),
            min=minimum,
            max=maximum,
            nproc=nproc,
            describes_job=not urls or self._text("min") is not None or self._text("max") is not None,
            job=self._job(),
            urls=urls,
            endpoint=endpoint,
            port=self._port(serves),
            max_restarts=self._count("max_restarts", least=0, default=3),
            min_timeout=self._seconds("min_timeout", 600.0),
            hang_timeout=self._seconds("hang_timeout", 300.0),
            shutdown_timeout=self._seconds("shutdown_timeout", 30.0),
            rendezvous_timeout=self._seconds("rendezvous_timeout", 60.0),
            address=self._address(serves),
            host=self._environ.get(worker_environment.HOST) or socket.gethostname(),
            pod=self._environ.get(worker_environment.POD, ""),
            watch_pods=self._watch_pods(),
            log_dir=log_folder(self._words, output, self._fail),
            output=output,
            verbose=self._is_on("verbose"),
            quiet=self._is_on("quiet"),
            drain_signals=self._drain_signals(),
            role=self._role(),
            virtual_local_rank=self._is_on("virtual_local_rank"),
            numa_binding=self._numa_binding(program),
            backend=self._backend(),
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
        maximum = self._count("max", least=1, default=0)
        # As torchrun means it: scripts that were written for so many workers never see fewer.
        is_fixed = serves and maximum == 0 and nproc > 0
        minimum = self._count("min", least=1, default=nproc if is_fixed else 1)
        if maximum:
            most = f"--max {maximum}"
        elif nproc:
            maximum, most = nproc, f"--max {nproc} (the default: --nproc-per-node)"
        else:
            maximum = count_gpus(self._environ) or 1
            most = f"--max {maximum} (the default: the GPUs of this host, or 1)"
        if not nproc:
            nproc = maximum if serves else min(maximum, count_gpus(self._environ) or 1)
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
        try:
            return workers_per_node(given.value, given.where, self._environ)
        except UsageError as error:
            self._fail(str(error))

    def _is_on(self, name: str) -> bool:
        given = self._text(name)
        try:
            return given is not None and is_on(given.value)
        except UsageError as error:
            self._fail(f"{given.where if given else name} {error}")

    def _endpoint(self) -> Endpoint | None:
        """None if the agents do not meet at one, or --rendezvous or --standalone has the word."""
        given, rendezvous = self._text("endpoint"), self._text("rendezvous")
        if given is None or self._is_on("standalone"):
            return None
        if rendezvous is not None:
            if given.where.startswith("-") and rendezvous.where.startswith("-"):
                self._fail(
                    f"{rendezvous.where} and {given.where} both say where the agents meet: leave one of them out"
                )
            if not given.where.startswith("-"):
                return None
        if self._text("max") is None:
            self._fail(
                f"{given.where} is for the agents of several hosts: say how many workers there may be, with --max"
            )
        try:
            chosen = self._text("serves_endpoint")
            return Endpoint.parse(given.value, None if chosen is None else self._is_on("serves_endpoint"))
        except UsageError as error:
            self._fail(f"{given.where}: {error}")

    def _urls(self) -> tuple[str, ...]:
        given = self._text("rendezvous")
        alone = self._is_on("standalone")
        if given is not None and alone:
            self._fail(f"{given[1]} and --standalone contradict each other: leave one of them out")
        if given is not None:
            return tuple(self._checked_url(url.strip(), given[1]) for url in given[0].split(","))
        several = self._text("several_nodes")
        if several is not None and not alone:
            self._fail(
                f"{several.where} is {several.value!r}, but nothing says where the nodes meet: give --rdzv-endpoint HOST:PORT"
                " with the name of one of them, the same on all (localhost:29400 for agents of one machine)"
            )
        if self._environ.get("KUBERNETES_SERVICE_HOST") and not alone and self._text("one_node") is None:
            self._fail(
                "this is a pod, and no --rendezvous was given: it would train on its own, beside its peers. Give"
                " --rendezvous http://SERVICE:PORT (or ELASTIC_RENDEZVOUS), or --standalone if that is what you want"
            )
        return ()

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
        port = self._count("port", least=0, default=0)
        if port > 65535:
            self._fail(f"--port is {port}: give a port from 1 to 65535, or 0 for any free one")
        if port and not serves:
            self._fail("--port is for the server in this agent, but another place was given to meet at: leave one out")
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
        return "127.0.0.1" if serves else None

    def _watch_pods(self) -> str:
        given = self._text("watch_pods")
        if given is None:
            return ""
        try:
            return checked_selector(given[0])
        except UsageError as error:
            self._fail(f"{given[1]}: {error}")

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

    def _backend(self) -> str:
        """Empty if it was not given."""
        given = self._text("backend")
        if given is not None and given.value not in worker_environment.BACKENDS:
            self._fail(f"{given.where} is {given.value!r}: give {' or '.join(worker_environment.BACKENDS)}")
        return given.value if given else ""

    def _preload(self) -> tuple[str, ...]:
        given = self._text("preload")
        return tuple(name.strip() for name in given.value.split(",") if name.strip()) if given else ()

    def _drain_signals(self) -> tuple[int, ...]:
        given = self._text("signals_to_handle")
        try:
            return DRAINING if given is None else draining_signals(given.value)
        except UsageError as error:
            self._fail(f"{given.where if given else ''}: {error}")

    def _role(self) -> str:
        given = self._text("role")
        return "default" if given is None else given.value

    def _numa_binding(self, program: Program) -> str:
        given = self._text("numa_binding")
        if given is None:
            return ""
        if program.kind == "executable":
            self._fail(f"{given.where} is for Python scripts: put `numactl` in front of {program.name!r} instead")
        if count_gpus(self._environ) == 0:
            self._fail(f"{given.where} binds workers near their GPUs, but this host has no NVIDIA GPU: leave it out")
        return given.value

    def _python(self) -> str:
        """Another interpreter than this one, by torchrun's variable; empty for this one."""
        given = self._environ.get("PYTHON_EXEC", "")
        try:
            return checked_executable(given) if given else ""
        except UsageError as error:
            self._fail(f"PYTHON_EXEC: {error}")

    def _program(self) -> Program:
        is_module = self._flags.module or self._is_on("module")
        is_script, is_executable = self._is_on("run_path"), self._is_on("no_python")
        if is_module and (is_script or is_executable):
            self._fail("-m runs a Python module: leave out --no-python and --run-path, or -m")
        try:
            return find_program(
                self._flags.script,
                self._flags.args,
                as_module=is_module,
                as_executable=is_executable and not is_script,
                as_script=is_script,
            )
        except UsageError as error:
            self._fail(str(error))
