"""Runs the digits job on four workers, kills one of them on the way, and checks that training went on.

    make demo

The killed worker gets SIGKILL, as from a preempted host: it says goodbye to nobody.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

LIMIT = 300.0  # seconds for the whole demo, on a slow machine
KILL_AT = 60  # the first step at which a worker may be killed
STEP = re.compile(r"\bstep (\d+)")
ACCURACY = re.compile(r"\btest accuracy ([\d.]+)")
WANTED_ACCURACY = 0.97


class Seen:
    """What the job's output has shown."""

    def __init__(self) -> None:
        self.killed: int | None = None
        self.lost = ""
        self.joined = ""
        self.last_step = 0
        self.accuracy = 0.0

    def read(self, line: str) -> None:
        """Take note of one line."""
        if " lost: " in line:
            self.lost = self.lost or line
        elif " joined: " in line and self.lost:
            self.joined = self.joined or line
        elif step := STEP.search(line):
            self.last_step = int(step[1])
        if accuracy := ACCURACY.search(line):
            self.accuracy = float(accuracy[1])

    def missing(self) -> str:
        """What should have been seen and was not; empty if all is well."""
        if self.killed is None:
            return "no worker was killed"
        if not self.lost:
            return "no line told of the loss"
        if self.accuracy <= WANTED_ACCURACY:
            return f"the test accuracy is {self.accuracy}, not above {WANTED_ACCURACY}"
        return ""


def workers_of(agent: int) -> list[int]:
    """The process ids of an agent's workers; they have a worker's variables in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) if folder.name.isdigit() else 0
            if parent == agent and b"\0ELASTIC_WORKER=" in b"\0" + (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # the process is gone
    return found


def kill_one_worker(agent: int) -> int | None:
    """The process id of the worker that was killed, any of them, rank 0 too; None if there are too few to spare one."""
    workers = workers_of(agent)
    if len(workers) < 2:
        return None
    victim = random.choice(workers)
    os.kill(victim, signal.SIGKILL)
    return victim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    launch = Path(sys.executable).with_name("elastic-launch")
    script = Path(__file__).with_name("train.py")
    command = [str(launch), "--min", "1", "--max", "4", str(script), "--epochs", str(epochs)]
    print("$", " ".join(command), flush=True)
    seen = Seen()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        limit = threading.Timer(LIMIT, agent.kill)
        limit.start()
        assert agent.stdout is not None
        try:
            for line in agent.stdout:
                print(line, end="", flush=True)
                seen.read(line)
                if seen.killed is None and seen.last_step >= KILL_AT:
                    seen.killed = kill_one_worker(agent.pid)
                    print(f"demo: kill -9 {seen.killed}, at step {seen.last_step}", flush=True)
        except KeyboardInterrupt:
            agent.send_signal(signal.SIGINT)
            raise
        finally:
            code = agent.wait()
            limit.cancel()
    print()
    if code != 0 or seen.missing():
        sys.exit(f"demo: failed: exit code {code}; {seen.missing() or 'see above'}")
    print(f"demo: process {seen.killed} was killed, and the others went on in their processes:")
    print(f"demo:   {seen.lost.strip()}")
    if seen.joined:
        print("demo: a fresh one took its place while they trained:")
        print(f"demo:   {seen.joined.strip()}")
    print(f"demo: {seen.last_step} steps, test accuracy {seen.accuracy}")


if __name__ == "__main__":
    main()
