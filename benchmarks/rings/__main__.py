"""`python -m benchmarks.rings`: an all-reduce, a vote, a training step and forming, over gloo and over our own sockets.

The two take turns, so that a busy machine is as busy for one as for the other. Prints tables, writes rings.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import BenchmarkError
from benchmarks.report import machine

from .members import Members

BACKENDS = ("gloo", "tcp")
SIZES = (4, 1024, 16_384, 131_072, 1_000_000, 10_000_000, 100_000_000, 400_000_000)
_PER_TURN = 100_000_000  # bytes, unless one takes more
_MANY = 100  # repeats of what is small
_ARRAYS = (160, 40_000)  # the number of small gradients, and the bytes of one

Times = dict[str, dict[str, list[float]]]
"""By what was measured, and by backend: seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rings", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 4, 8))
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES, help="sizes of the arrays of float32")
    parser.add_argument("--turns", type=int, default=5, help="of each backend")
    parser.add_argument("--steps", type=int, default=30, help="training steps of a turn; 0 for none")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for rings.json")
    chosen = parser.parse_args()
    where = machine()
    print(f"{where['cpu']}, {where['cores']} cores, load {where['load'][0]:.1f}", flush=True)
    results: dict[int, Times] = {}
    try:
        for ranks in chosen.ranks:
            began = time.monotonic()
            results[ranks] = measure(ranks, chosen.bytes, chosen.turns, chosen.steps)
            print(f"\n{ranks} ranks, medians in ms (measured in {time.monotonic() - began:.0f} s)")
            print_table(results[ranks])
    except BenchmarkError as error:
        print(f"benchmarks.rings: {error}", file=sys.stderr)
        return 1
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / "rings.json"
    path.write_text(json.dumps({"machine": where, "seconds": results}, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


def measure(ranks: int, sizes: list[int], turns: int, steps: int) -> Times:
    times: Times = {}

    def note(what: str, backend: str, seconds: list[float]) -> None:
        times.setdefault(what, {}).setdefault(backend, []).extend(seconds)

    members = Members(ranks)
    try:
        for _ in range(turns):
            for backend in BACKENDS:
                with members.ring(backend) as seconds:
                    note("form, and a first operation", backend, [seconds])
                    note("vote", backend, members.do("vote", _MANY))
                    for size in sizes:
                        repeats = max(1, min(_MANY, _PER_TURN // size))
                        note(f"all-reduce of {size:,} bytes", backend, members.do("allreduce", size, repeats))
                        if backend == "tcp":
                            alone = members.do("allreduce_without_torch", size, repeats)
                            note(f"all-reduce of {size:,} bytes", "tcp without torch", alone)
                    if backend == "tcp":
                        for fused in (False, True):
                            what = f"{_ARRAYS[0]} arrays of {_ARRAYS[1]:,} bytes{', fused' if fused else ''}"
                            note(what, "tcp without torch", members.do("gradients", *_ARRAYS, fused, _MANY // 10))
                    if steps:
                        note("training step", backend, members.do("train", steps))
    finally:
        members.end()
    return times


def print_table(times: Times) -> None:
    columns = (*BACKENDS, "tcp without torch")
    print(f"{'':34}" + "".join(f"{column:>20}" for column in columns))
    for what, by_backend in times.items():
        print(f"{what:34}" + "".join(_cell(by_backend, column) for column in columns))


def _cell(by_backend: dict[str, Any], column: str) -> str:
    return f"{1000 * median(by_backend[column]):20.3f}" if column in by_backend else " " * 20


if __name__ == "__main__":
    sys.exit(main())
