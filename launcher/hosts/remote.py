"""The agent on a host, as a launcher starts it there: as a process of its own or over a remote shell, on a leash."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

import msgspec

from ...rendezvous import worker_environment
from .. import exits
from ..address import AddressError, address_of_interface
from ..agent import Agent
from ..guarding import Guard
from ..options import Options
from ..output.room import Output
from .assignment import Assignment, decode
from .calls import FLAG, call
from .leash import Held, Leash, read_line
from .secret_file import secret_file

_STDIN = 0
_FLUSH_LIMIT = 5.0  # seconds for output that nobody takes
_PARTING = 5.0  # seconds that workers have to leave in order when the launcher is gone, and with it the job's server


def main() -> int:
    """The exit code."""
    leash = _STDIN
    line, rest = read_line(leash)
    if not line and sys.argv[1:2] == [FLAG]:
        try:
            leash = call(*sys.argv[2:4]).detach()
        except OSError as error:
            return _fail(f"the launcher cannot be called at {sys.argv[2]}: {error}")
        line, rest = read_line(leash)
    try:
        assignment = decode(line)
    except msgspec.DecodeError as error:
        return _fail(f"this is for a launcher of the same version to start, over a line on standard input: {error}")
    os.environ.update(assignment.environment)
    try:
        os.chdir(assignment.folder)
    except OSError as error:
        _say(f"folder {assignment.folder!r} cannot be used here, going on in {os.getcwd()!r}: {error.strerror}")
    try:
        options = _completed(assignment)
    except AddressError as error:
        return _fail(str(error))
    guard = Guard()
    try:
        output = Output(options.output, os.environ)
        code = asyncio.run(_run(options, leash, rest, guard, output))
        output.close(_FLUSH_LIMIT)
        return code
    finally:
        guard.close()


def _completed(assignment: Assignment) -> Options:
    """With what only this host knows. AddressError if it has none of the interfaces."""
    options = assignment.options
    return replace(
        options,
        address=address_of_interface(assignment.interfaces) if assignment.interfaces else None,
        pod=os.environ.get(worker_environment.POD, ""),
        access=replace(options.access, token_file=secret_file(assignment.token)),
    )


async def _run(options: Options, descriptor: int, rest: bytes, guard: Guard, output: Output) -> int:
    agent = Agent(options, os.environ, guard, output)

    def lost(why: str) -> None:
        agent.drain(why)
        asyncio.get_running_loop().call_later(_PARTING, agent.end_at_once)

    running = asyncio.ensure_future(agent.run())
    await asyncio.sleep(0)  # the agent can be told something from here on
    leash = Leash(
        descriptor,
        rest,
        Held(
            drain=lambda: agent.drain("the launcher lets go of this host"),
            end=agent.end_at_once,
            resize=agent.resize,
            lost=lost,
        ),
    )
    try:
        return await running
    finally:
        leash.close()


def _say(text: str) -> None:
    print(f"[elastic-launch] {text}", file=sys.stderr)


def _fail(text: str) -> int:
    _say(text)
    return exits.USAGE


if __name__ == "__main__":
    sys.exit(main())
