"""The server and the crowds of agents as processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.jobs import ROOT, BenchmarkError, Program, wait_for

_URL = re.compile(r"serving (http://[\w.\[\]:]+:\d+)")


class ServerProcess:
    """`elastic-rendezvous`, on a free port of the loopback."""

    def __init__(self, folder: Path, lease: float, store: Sequence[str], profile: Path | None = None) -> None:
        profiler = ["-m", "cProfile", "-o", str(profile)] if profile else []
        command = [sys.executable, *profiler, "-m", "elastic_launch.rendezvous.main"]
        flags = ["--host", "127.0.0.1", "--port", "0", "--lease", f"{lease:g}", *store]
        self.program = Program([*command, *flags], folder / "server.log")
        self.url = wait_for(lambda: _URL.search(self.program.output), 30, "the server", self.program).group(1)  # type: ignore[union-attr]
        self._process = psutil.Process(self.program.process.pid)

    @property
    def cpu(self) -> float:
        """Seconds that it has computed."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return int(self._process.memory_info().rss)


class CrowdProcess:
    """The near end of a `crowd`."""

    def __init__(self, options: dict[str, Any], numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rendezvous.crowd", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def ask(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Of the oldest command that has not been answered yet. BenchmarkError if it failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process of the agents has ended"}
        if "error" in answer:
            raise BenchmarkError(answer["error"])
        return answer

    def do(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.ask(do, **arguments)
        return self.answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
