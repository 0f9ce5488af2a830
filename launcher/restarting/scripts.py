"""Starting the processes of scripts, and the store that the scripts of a generation meet at."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import string
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...rendezvous import worker_environment
from ...rendezvous.host_port import host_port
from ...rendezvous.parent_death import die_with_parent
from ..child_process import ChildProcess, Started
from ..guarding import Guard
from ..output.prefixes import Label
from ..output.room import Output
from ..program import Program
from ..threads import in_a_thread
from .fork_server import ForkServer

_STORE_LIMIT = 20.0  # seconds until a store that is served by a process of its own listens


class Store:
    """Where the scripts of one generation find `MASTER_ADDR` and `MASTER_PORT`.

    `is_served` says that something listens there already; otherwise the script of rank 0 is to do so itself.
    """

    def __init__(self, address: str, process: ChildProcess | None = None, line: socket.socket | None = None) -> None:
        self.address = address
        self.process = process
        self.is_served = process is not None
        self._line = line

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self.process is not None:
            self.process.send_signal(9)


@dataclass(frozen=True)
class Scripts:
    """The program of an agent's workers, and what all of its processes have in common. `stores`: torch is there to serve them."""

    program: Program
    environ: Mapping[str, str]
    output: Output
    guard: Guard
    fork_server: ForkServer
    stores: bool

    def start(
        self,
        environ: Mapping[str, str],
        label: Callable[[], Label],
        logs: Path | None,
        on_end: Callable[[int], None],
    ) -> ChildProcess:
        """OSError if it cannot be started. `${local_rank}` in an argument is replaced, as torchrun does."""
        words = {"local_rank": environ["LOCAL_RANK"]}
        arguments = tuple(string.Template(word).safe_substitute(words) for word in self.program.arguments)
        program = Program(self.program.kind, self.program.name, arguments)

        mark = uuid.uuid4().hex
        environ = {**environ, worker_environment.MARK: mark}

        def start(stdout: int, stderr: int) -> Started:
            if program.kind != "executable" and self.fork_server.is_usable:
                request = {
                    "environ": dict(environ),
                    "program": program.name,
                    "arguments": arguments,
                    "as_module": program.kind == "module",
                }
                with contextlib.suppress(OSError):
                    return self.fork_server.fork(request, (stdout, stderr))
            return _spawn(program, environ, stdout, stderr)

        return ChildProcess(start, self.output, self.guard, label, logs, on_end, f"{worker_environment.MARK}={mark}")

    async def open_store(self, address: str) -> Store:
        """On `address`, which is this host's. OSError if it does not come up."""
        if not self.stores or not self.fork_server.is_usable:
            return Store(host_port(address, free_port(address)))
        ours, theirs = socket.socketpair()
        try:
            process = ChildProcess(
                lambda stdout, stderr: self.fork_server.fork({"store_at": address}, (stdout, stderr, theirs.fileno())),
                self.output,
                self.guard,
                lambda: Label("", name="store"),
                None,
                lambda code: None,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        store = Store("", process, ours)
        try:
            ours.settimeout(_STORE_LIMIT)
            port = await in_a_thread(lambda: ours.recv(16), "store", stop=lambda: _shut(ours))
            if not port:
                raise OSError(
                    "the store of the scripts did not come up: see what it wrote above, and whether torch can be imported"
                )
        except BaseException:
            store.close()
            raise
        store.address = host_port(address, int(port))
        return store


def _spawn(program: Program, environ: Mapping[str, str], stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(program),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=dict(environ),
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )


def _command(program: Program) -> tuple[str, ...]:
    if program.kind == "executable":
        return (program.name, *program.arguments)
    module = ("-m",) if program.kind == "module" else ()
    return (sys.executable, "-u", *module, program.name, *program.arguments)


def free_port(address: str) -> int:
    """It is free now. Whoever takes it first has it: without torch nobody can hold it for the script of rank 0."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port


def _shut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
