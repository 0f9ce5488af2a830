"""The launcher's side of one agent on a host: a child process, here or at the other end of a remote shell, on a leash."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from ...rendezvous.parent_death import die_with_parent
from ..child_process import ChildProcess
from ..guarding import Guard
from ..output.prefixes import PASSED_ON
from ..output.room import Output
from . import leash
from .plan import Present


class HostAgent:
    """From its start until `on_end` is called with the exit code (128 + n for signal n)."""

    def __init__(
        self,
        command: Sequence[str],
        assignment: bytes,
        slots: int,
        output: Output,
        guard: Guard,
        on_end: Callable[[HostAgent, int], None],
    ) -> None:
        """OSError if the process cannot be started."""
        self.slots = slots
        self.leaving = False
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._said = bytearray()
        self._caller: asyncio.StreamWriter | None = None
        self._stdin = -1
        self._on_end = on_end
        self._process = ChildProcess(
            lambda stdout, stderr: self._spawn(command, stdout, stderr),
            output,
            guard,
            lambda: PASSED_ON,
            None,
            self._ended,
        )
        self._say(assignment)
        self._beat()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def present(self) -> Present:
        return Present(self.slots, self.leaving)

    def answer(self, caller: asyncio.StreamWriter) -> None:
        """The agent had no standard input, and has called: it is told all that was said to it."""
        if self._process.has_ended:
            caller.close()
            return
        self._caller = caller
        caller.write(bytes(self._said))

    def resize(self, slots: int) -> None:
        self.slots = slots
        self._say(leash.slots(slots))

    def drain(self) -> None:
        """Its workers leave the job in order, and it ends."""
        if not self.leaving:
            self.leaving = True
            self._say(leash.DRAIN)

    def end(self) -> None:
        """It ends at once, with all that it has started."""
        self.leaving = True
        self._say(leash.END)

    def kill(self) -> None:
        """Ends what runs here; at the other end of a remote shell it means that the leash has broken."""
        self._process.send_signal(signal.SIGKILL)
        self._hang_up()

    def tail(self) -> str:
        """The last lines of what it wrote to its standard error."""
        return self._process.tail()

    @property
    def is_drained(self) -> bool:
        return self._process.is_drained

    async def drained(self) -> None:
        """To be awaited after its end, until its output has been passed on."""
        await self._process.drained()

    def _spawn(self, command: Sequence[str], stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        theirs, self._stdin = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._stdin, False)
        return process

    def _say(self, line: bytes) -> None:
        if self._caller is not None:
            self._caller.write(line)
        elif line != leash.BEAT:
            self._said += line
        if self._stdin >= 0:
            self._unsent += line
            self._write()

    def _write(self) -> None:
        try:
            del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it reads no more, and will have ended
            self._let_go()
            return
        if self._unsent:
            self._loop.add_writer(self._stdin, self._write)
        else:
            self._loop.remove_writer(self._stdin)

    def _beat(self) -> None:
        self._say(leash.BEAT)
        self._beating = self._loop.call_later(leash.BEAT_PERIOD, self._beat)

    def _let_go(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _hang_up(self) -> None:
        if self._caller is not None:
            self._caller.close()

    def _ended(self, code: int) -> None:
        self._beating.cancel()
        self._let_go()
        self._hang_up()
        self._on_end(self, code)
