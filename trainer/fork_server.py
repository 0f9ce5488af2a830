"""A process that has imported what the scripts import, and forks: a script that is started again pays for no import.

    python -m elastic_launch.trainer.fork_server DESCRIPTOR MODULE...

DESCRIPTOR is a socket of datagrams to the agent. The first one to the agent is "warm", or "unfit" if what was imported
cannot be forked; each one from it asks for one
process, and is answered with the process's id. A request carries three descriptors: its own text (`Request` as JSON), and
the standard output and error of the process. The process is the agent's child, not this one's: it is forked twice, and the
agent adopts it (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

import msgspec

from ..rendezvous.parent_death import die_with_parent
from .running import of_the_script, run

_ADOPTION = 10.0  # seconds until the agent must have become the parent


class Request(msgspec.Struct, frozen=True):
    """`store_at` is the address of a store to be served, empty to run a program. `agent` is the parent's process id."""

    agent: int
    environ: dict[str, str] = {}
    program: str = ""
    arguments: list[str] = []
    as_module: bool = False
    store_at: str = ""


@dataclass(frozen=True)
class _Asked:
    """In the forked process: what it was forked for. `line` is the descriptor of a store's socket to the agent, or -1."""

    request: Request
    line: int


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
        "1"  # a module that asks for GPUs as it is imported is not to open them
    )
    for module in sys.argv[2:]:
        _import(module)
    if _has_opened_gpus():
        control.send(b"unfit")
        return
    gc.collect()
    gc.freeze()  # so that no collection in a forked process writes to, and thereby copies, what all share
    control.send(b"warm")
    asked = _serve(control)
    if asked is None:
        return
    control.close()
    if asked.request.store_at:
        _serve_store(asked.request.store_at, asked.line)
    else:
        _run(asked.request)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        pass  # the script will say so if it needs it
    except Exception as error:
        print(
            f"elastic: {module} cannot be imported ahead: {type(error).__name__}: {error}", file=sys.stderr, flush=True
        )


def _has_opened_gpus() -> bool:
    """Whether a forked process could not use CUDA any more: the driver survives no fork."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _serve(control: socket.socket) -> _Asked | None:
    """Returns in the forked processes only, and with None when the agent is gone."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            return None
        receiving, sending = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(receiving)
            second = os.fork()
            if second:
                os.write(sending, str(second).encode())
                os._exit(0)
            os.close(sending)
            return _become(descriptors)
        os.close(sending)
        for descriptor in descriptors:
            os.close(descriptor)
        pid = os.read(receiving, 16)
        os.close(receiving)
        os.waitpid(first, 0)
        control.send(pid or b"0")


def _become(descriptors: list[int]) -> _Asked:
    """Make this process one of its own: its parent, session, output and environment."""
    text, stdout, stderr, *line = descriptors
    size = os.fstat(text).st_size
    request = msgspec.json.decode(os.pread(text, size, 0), type=Request)
    os.close(text)
    os.setsid()
    deadline = time.monotonic() + _ADOPTION
    while os.getppid() != request.agent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0005)
    die_with_parent(request.agent)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if request.environ:
        os.environ.clear()
        os.environ.update(request.environ)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # or the generators of all forked processes would give the same numbers
    return _Asked(request, line[0] if line else -1)


def _serve_store(address: str, line: int) -> None:
    """The store that scripts find at MASTER_ADDR and MASTER_PORT, until the agent closes its end of the line."""
    import torch.distributed

    with socket.socket(fileno=line) as agent:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            address, 0, None, True, wait_for_workers=False
        )
        agent.send(str(store.port).encode())
        agent.recv(1)
    os._exit(0)


def _run(request: Request) -> None:
    sys.argv = [request.program, *request.arguments]
    try:
        run(request.program, request.as_module)
    except SystemExit:
        raise
    except BaseException as error:
        told = error.with_traceback(of_the_script(error))
        sys.excepthook(type(told), told, told.__traceback__)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


if __name__ == "__main__":
    main()
