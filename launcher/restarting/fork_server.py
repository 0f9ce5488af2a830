"""The agent's side of its fork server (`trainer/fork_server.py`): starts it, has it fork processes, replaces it if it dies."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...rendezvous.parent_death import die_with_parent
from ..child_process import ChildProcess
from ..guarding import Guard
from ..output.prefixes import Label
from ..output.room import Output
from ..reporter import Reporter

_MODULE = "elastic_launch.trainer.fork_server"
_ANSWER_LIMIT = 10.0  # seconds
_WARM_LIMIT = 300.0  # seconds for its imports
_MOST_FAILURES = 3
_PR_SET_CHILD_SUBREAPER = 36


class ForkedProcess:
    """A process that the fork server has made a child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Its exit code, -n for signal n."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class ForkServer:
    """One for all slots of an agent. `warm` must be awaited before each use."""

    def __init__(
        self, modules: Sequence[str], environ: Mapping[str, str], output: Output, guard: Guard, reporter: Reporter
    ) -> None:
        """Starts to import `modules`; those that are not there are left out."""
        self._modules = modules
        self._environ = environ
        self._output = output
        self._guard = guard
        self._reporter = reporter
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._closing = False
        self._process: ChildProcess | None = None
        self._control: socket.socket | None = None
        self._warm = asyncio.Event()
        # The processes that it forks are to become this one's children when their own parent ends.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_usable(self) -> bool:
        """False when it has failed again and again before it was warm: processes must then be started in another way."""
        return self._failures < _MOST_FAILURES

    async def warm(self) -> None:
        """Returns when it is ready to fork, or not usable at all."""
        await self._warm.wait()

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> ForkedProcess:
        """`request` has the fields of `Request`; its descriptors are standard output and error, and perhaps a line.

        OSError if the fork server cannot do it.
        """
        if self._control is None or not self._warm.is_set():
            raise OSError("the fork server is not there")
        text = os.memfd_create("elastic-request", os.MFD_CLOEXEC)
        try:
            os.write(text, msgspec.json.encode({"agent": os.getpid(), **request}))
            socket.send_fds(self._control, [b"fork"], [text, *descriptors])
            self._control.settimeout(_ANSWER_LIMIT)
            pid = int(self._control.recv(16) or b"0")
        except OSError:
            self._kill()
            raise
        finally:
            os.close(text)
        if pid == 0:
            raise OSError("the fork server could not fork")
        return ForkedProcess(pid)

    async def close(self) -> None:
        self._closing = True
        self._warm.set()
        if self._process is not None and not self._process.has_ended:
            self._kill()
        if self._control is not None:
            self._forget_control()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = ChildProcess(
                lambda stdout, stderr: self._spawn(theirs, stdout, stderr),
                self._output,
                self._guard,
                lambda: Label("", name="fork server"),
                None,
                self._ended,
            )
        except OSError as error:
            ours.close()
            self._give_up(f"cannot be started: {error}")
            return
        finally:
            theirs.close()
        self._control = ours
        self._loop.add_reader(ours, self._hear)
        self._impatience = self._loop.call_later(_WARM_LIMIT, self._hangs)

    def _spawn(self, control: socket.socket, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", _MODULE, str(control.fileno()), *self._modules],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(self._environ),
            pass_fds=(control.fileno(),),
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )

    def _hangs(self) -> None:
        self._give_up(f"has not imported {', '.join(self._modules)} within {_WARM_LIMIT:g} s, and is ended")
        self._kill()

    def _hear(self) -> None:
        assert self._control is not None
        self._impatience.cancel()
        self._loop.remove_reader(self._control)
        try:
            said = self._control.recv(16)
        except OSError:
            said = b""
        if said == b"warm":
            self._failures = 0
            self._warm.set()
        elif said == b"unfit":
            self._give_up("has opened the GPUs while it imported, and cannot be forked")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def _forget_control(self) -> None:
        assert self._control is not None
        self._loop.remove_reader(self._control)
        self._control.close()
        self._control = None

    def _ended(self, code: int) -> None:
        self._impatience.cancel()
        if self._control is not None:
            self._forget_control()
        if self._closing or not self.is_usable:
            return
        self._warm.clear()
        self._failures += 1
        if self._failures < _MOST_FAILURES:
            self._start()
        else:
            self._give_up(f"has ended {_MOST_FAILURES} times, at last with code {code}")

    def _give_up(self, why: str) -> None:
        self._failures = _MOST_FAILURES
        self._warm.set()
        self._reporter.say(f"the fork server {why}: scripts start without it, which takes as long as their imports")
