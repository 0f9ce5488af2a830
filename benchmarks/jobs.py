"""Processes of a measurement: started with their output kept, ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


class BenchmarkError(Exception):
    """A measurement cannot go on; the message has the end of its processes' output."""


class Program:
    """A running command and all that it starts."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self._log = log
        with open(log, "wb") as output:
            self.started = time.monotonic_ns()
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self, number: int = signal.SIGINT, limit: float = 10.0) -> None:
        """Ask it to end with a signal; after the limit, end it and what it has started."""
        if self.process.poll() is not None:
            return
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for descendant in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()


def agent(flags: Sequence[str], module: str, arguments: Sequence[str], log: Path) -> Program:
    """`elastic-launch` with a module of this package."""
    launcher = [sys.executable, "-m", "elastic_launch.launcher.main", *flags]
    return Program([*launcher, "-m", module, *arguments], log)


def wait_for(condition: Callable[[], T], limit: float, what: str, *programs: Program) -> T:
    """The first true value of `condition`. Raises `BenchmarkError` at the limit (seconds) or when a program has ended."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        ended = [program for program in programs if program.process.poll() is not None]
        if ended or time.monotonic() > deadline:
            why = f"a process ended with {ended[0].process.returncode}" if ended else f"{limit:g} s were over"
            tails = "\n".join(program.output[-3000:] for program in programs)
            raise BenchmarkError(f"waited for {what}, but {why}; the output ends with:\n{tails}")
        time.sleep(0.01)


@contextlib.contextmanager
def ending(*programs: Program) -> Iterator[None]:
    try:
        yield
    finally:
        for program in reversed(programs):
            program.end()
