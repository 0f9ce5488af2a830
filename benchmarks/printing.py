"""What printing costs a worker: the time of a step that prints much, with consoles that are fast, slow, and stuck.

    python -m benchmarks.printing [--lines 1000] [--steps 300]

Each step computes for about 10 ms and prints `--lines` lines: 1000 make 100,000 lines a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .machine import machine

ROOT = Path(__file__).parent.parent
_WORKER = """
import json, os, sys, time
path, steps, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
took = []
for step in range(steps):
    began = time.perf_counter()
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        sum(range(1000))
    printing = time.perf_counter()
    sys.stdout.write("".join(f"step {step} line {line}\\n" for line in range(lines)))
    sys.stdout.flush()
    ended = time.perf_counter()
    took.append((ended - began, ended - printing))
with open(f"{path}.{os.environ['LOCAL_RANK']}.part", "w") as file:
    json.dump(took, file)
os.rename(file.name, file.name[:-5])
"""
_LAUNCH = ("-m", "elastic_launch.launcher.main", "--quiet", "--no-python")
_READER = "import os, time\nwhile os.read(0, 50_000): time.sleep({pause})"
_FAST, _SLOW, _STUCK = (_READER.format(pause=pause) for pause in ("0", "0.05", "600"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1000, help="printed in each step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    launch = [*_LAUNCH, "--max", str(asked.workers)]
    print(json.dumps(machine()))
    print(f"{asked.workers} workers, {asked.steps} steps of {asked.lines} lines; milliseconds a step\n")
    print("| console | step, median | p95 | of which printing | p95 | lines a second and worker |")
    print("|---|---|---|---|---|---|")
    for name, launcher, console in (
        ("none of ours: each worker by itself, its console takes everything at once", [], _FAST),
        ("takes everything at once", launch, _FAST),
        ("takes 1 MB a second", launch, _SLOW),
        ("takes nothing", launch, _STUCK),
    ):
        took = _measure(launcher, console, asked.steps, asked.lines, asked.workers)
        whole, printing = zip(*took, strict=True)
        rate = asked.lines / statistics.mean(whole)
        print(f"| {name} | {_in_milliseconds(whole)} | {_in_milliseconds(printing)} | {rate:,.0f} |", flush=True)


def _in_milliseconds(seconds: Sequence[float]) -> str:
    """Median and 95th percentile."""
    return f"{1000 * statistics.median(seconds):.1f} | {1000 * statistics.quantiles(seconds, n=20)[-1]:.1f}"


def _measure(launcher: list[str], console: str, steps: int, lines: int, workers: int) -> list[tuple[float, float]]:
    """Seconds of each step of each worker, and of its printing."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "took"
        worker = [sys.executable, "-c", _WORKER, str(result), str(steps), str(lines)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        if launcher:
            commands = [([sys.executable, *launcher, *worker], {})]
        else:
            commands = [(worker, {"LOCAL_RANK": str(rank)}) for rank in range(workers)]
        running = []
        for command, extra in commands:
            reader = subprocess.Popen([sys.executable, "-c", console], stdin=subprocess.PIPE)
            process = subprocess.Popen(
                command, stdout=reader.stdin, env={**environ, **extra}, stderr=subprocess.DEVNULL
            )
            assert reader.stdin is not None
            reader.stdin.close()
            running.append((process, reader))
        files = [Path(f"{result}.{rank}") for rank in range(workers)]
        for process, reader in running:
            while process.poll() is None and not all(file.exists() for file in files):
                try:
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    pass
            if launcher:
                process.kill()
            process.wait()
            reader.kill()
            reader.wait()
        return [(whole, printing) for file in files for whole, printing in json.loads(file.read_text())]


if __name__ == "__main__":
    main()
