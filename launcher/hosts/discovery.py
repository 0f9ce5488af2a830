"""Where the list of hosts comes from: a fixed one, or a script that is asked again and again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Protocol

from ...errors import ElasticError, UsageError
from ..guard import kill_group
from ..guarding import Guard
from .listing import Host, parse_discovered

_LIMIT = 30.0  # seconds for one run of the script
_KILL_LIMIT = 2.0  # seconds for the pipes of a killed one to be closed
_MOST_OUTPUT = 1 << 20  # bytes


class DiscoveryError(ElasticError):
    """The script gave no usable answer this time; the message says what happened."""


class Source(Protocol):
    """Where the hosts are listed."""

    async def hosts(self) -> tuple[Host, ...]:
        """DiscoveryError if it cannot be said just now."""


class FixedHosts:
    """As they were given on the command line or in a file."""

    def __init__(self, hosts: tuple[Host, ...]) -> None:
        self._hosts = hosts

    async def hosts(self) -> tuple[Host, ...]:
        return self._hosts


class DiscoveryScript:
    """A command for the shell that prints one host a line. It and all that it starts are gone when `hosts` returns."""

    def __init__(self, script: str, slots: int, guard: Guard, limit: float = _LIMIT) -> None:
        self._script = script
        self._slots = slots
        self._guard = guard
        self._limit = limit

    async def hosts(self) -> tuple[Host, ...]:
        code, out, err = await self._run()
        if code != 0:
            why = f": {err.splitlines()[-1]}" if err.strip() else ""
            raise DiscoveryError(f"host discovery script {self._script!r} has failed with exit code {code}{why}")
        try:
            return parse_discovered(out, self._slots)
        except UsageError as error:
            raise DiscoveryError(f"host discovery script {self._script!r} printed what is no list: {error}") from None

    async def _run(self) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_shell(
            self._script,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._guard.add(process.pid)
        try:
            return await asyncio.wait_for(_ended(process), self._limit)
        except asyncio.TimeoutError:
            raise DiscoveryError(
                f"host discovery script {self._script!r} was not done within {self._limit:g} s, and was killed"
            ) from None
        finally:
            if sys.exc_info()[0] is not None:  # so some of its group lives, and its number is nobody else's
                kill_group(process.pid, signal.SIGKILL)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_ended(process), _KILL_LIMIT)
            self._guard.remove(process.pid)
            await process.wait()


async def _ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Exit code and output."""
    assert process.stdout is not None and process.stderr is not None
    out, err = await asyncio.gather(_text(process.stdout), _text(process.stderr))
    return await process.wait(), out, err


async def _text(stream: asyncio.StreamReader) -> str:
    data = b""
    while chunk := await stream.read(1 << 16):
        data = (data + chunk)[:_MOST_OUTPUT]
    return data.decode(errors="replace")
