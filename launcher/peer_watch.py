"""The watch on this agent's peers in a cluster: a process of its own beside the agent, which knows nothing of Kubernetes."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..rendezvous.parent_death import die_with_parent
from .reporter import Reporter

if TYPE_CHECKING:
    from .options import Options

_MODULE = "elastic_launch.k8s.peers"
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a watch that has ended is begun again
_USAGE = 2  # exit code for what will not get better
_LINE = 64 * 1024  # bytes


class PeerWatch:
    """`run` keeps the watch going until it is cancelled; then the process is killed. It cannot outlive the agent."""

    def __init__(self, options: Options, urls: Sequence[str], reporter: Reporter) -> None:
        self._command = [sys.executable, "-m", _MODULE, *_arguments(options, urls)]
        self._reporter = reporter
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def run(self) -> None:
        pause = _PAUSE
        while True:
            code = await self._watch()
            self._reporter.say(f"the watch on the pods has ended with exit code {code}")
            if code == _USAGE:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _watch(self) -> int:
        """Once, until its process ends. Returns the exit code."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
            limit=_LINE,
        )
        try:
            assert process.stderr is not None
            while line := await process.stderr.readline():
                self._reporter.say(line.decode(errors="replace").rstrip())
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._process = None


def _arguments(options: Options, urls: Sequence[str]) -> list[str]:
    given = {
        "--pods": options.watch_pods,
        "--job": options.job,
        "--rendezvous": ",".join(urls),
        "--token-file": options.access.token_file,
        "--tls-ca": options.access.tls_ca,
        "--tls-cert": options.access.tls_cert,
        "--tls-key": options.access.tls_key,
    }
    return [f"{flag}={value}" for flag, value in given.items() if value]
