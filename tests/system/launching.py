"""Start agents with a training script, see what their workers journal, and disturb them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

SCRIPTS = Path(__file__).parent / "scripts"
Entry = dict[str, Any]


class Agent:
    """A running `elastic-launch`."""

    def __init__(self, flags: list[str], script: list[str], environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "elastic_launch.launcher.main", *flags, *script]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="agent-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.decode(errors="replace"))

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """Where the server inside this agent is reached."""
        match = wait_for(lambda: re.search(r"http://[\w.\[\]:]+:\d+", self.output), 20, "the server's URL")
        return str(match.group(0))

    def wait(self, limit: float = 60) -> int:
        """The exit code."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent did not end within {limit} s:\n{self.output[-6000:]}") from None
        self._reader.join(5)
        return code

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children()
            return [child for child in children if "elastic_launch.trainer.main" in " ".join(child.cmdline())]
        return []

    def end(self) -> None:
        if self.process.poll() is None:
            descendants = []
            with contextlib.suppress(psutil.NoSuchProcess):
                descendants = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for descendant in descendants:
                with contextlib.suppress(psutil.NoSuchProcess):
                    descendant.kill()
        self.process.wait(10)


class Lab:
    """One job's agents and journal."""

    def __init__(self, folder: Path) -> None:
        self.journal_folder = folder / "journal"
        self.journal_folder.mkdir()
        self.agents: list[Agent] = []

    def launch(self, *flags: str, script: str = "train.py", **options: Any) -> Agent:
        """Start an agent; keyword options become the script's flags (True: a bare flag)."""
        arguments = [str(SCRIPTS / script), "--journal", str(self.journal_folder)]
        for name, value in options.items():
            arguments.append("--" + name.replace("_", "-"))
            if value is not True:
                arguments.append(str(value))
        agent = Agent(list(flags), arguments)
        self.agents.append(agent)
        return agent

    def journal(self, event: str | None = None) -> list[Entry]:
        """All entries, in order of time."""
        entries: list[Entry] = []
        for file in self.journal_folder.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    entries.append(json.loads(line))
        entries.sort(key=lambda entry: entry["time"])
        return [entry for entry in entries if event is None or entry["event"] == event]

    def step(self) -> int:
        """The newest committed step."""
        return max((entry["step"] for entry in self.journal("step")), default=0)

    def wait_for_step(self, step: int, limit: float = 60) -> None:
        self.wait(lambda: self.step() >= step, limit, f"step {step}")

    def wait_for_world(self, world_size: int, limit: float = 60) -> None:
        """Until the newest step was made by a ring of `world_size`."""
        self.wait(lambda: self.world_size() == world_size, limit, f"a ring of {world_size}")

    def world_size(self) -> int:
        steps = self.journal("step")
        return int(steps[-1]["world_size"]) if steps else 0

    def wait(self, condition: Callable[[], Any], limit: float, what: str) -> Any:
        try:
            return wait_for(condition, limit, what)
        except AssertionError as error:
            output = "\n".join(agent.output[-4000:] for agent in self.agents)
            raise AssertionError(f"{error}; the agents said:\n{output}") from None

    def pid_of_rank(self, rank: int) -> int:
        """The live process that has this rank in the newest ring."""
        newest = max(entry["generation"] for entry in self.journal("change"))
        for entry in self.journal("change"):
            if entry["generation"] == newest and entry["rank"] == rank:
                return int(entry["pid"])
        raise AssertionError(f"nobody has rank {rank} in generation {newest}")

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> int:
        pid = self.pid_of_rank(rank)
        os.kill(pid, number)
        return pid

    def ends(self) -> list[Entry]:
        return self.journal("end")

    def assert_exact(self, epochs: int, samples: int, members: int | None = None) -> None:
        """Each sample of each epoch was applied exactly once, and everybody who finished has the same state."""
        ends = self.ends()
        assert ends, "nobody finished"
        if members is not None:
            assert len(ends) == members, ends
        for end in ends:
            assert end["counts"] == [-float(epochs)], end
            assert end["samples"] == epochs * samples, end
            assert end["seen"] == epochs, end
        assert len({end["weights"] for end in ends}) == 1, ends
        steps: dict[int, set[float]] = {}
        for entry in self.journal("step"):
            if entry["loss"] is not None:
                steps.setdefault(entry["step"], set()).add(entry["loss"])
        assert set(steps) == set(range(1, ends[0]["steps"] + 1)), "a step is missing from the journal"

    def losses(self) -> dict[int, float]:
        return {entry["step"]: entry["loss"] for entry in self.journal("step")}

    def end(self) -> None:
        for agent in self.agents:
            agent.end()


def wait_for(condition: Callable[[], Any], limit: float, what: str) -> Any:
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {limit} s in vain for {what}"
        time.sleep(0.02)


def running(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                yield pid
