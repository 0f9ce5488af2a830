"""The sizes of a run, from the command line to the workers."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

MEASUREMENTS = ("kills", "changes", "steady", "copies", "restarts")


@dataclass(frozen=True)
class Settings:
    """`seed` decides who is killed and when, in the step's phase."""

    only: tuple[str, ...] = MEASUREMENTS
    workers: int = 4
    trials: int = 20
    restart_trials: int = 10
    pairs: int = 40
    block: int = 20
    layers: tuple[int, ...] = (784, 1024, 1024, 640, 10)
    global_batch: int = 64
    samples: int = 1 << 20
    threads: int = 1
    calm_steps: int = 30
    replacement_wait: float = 1.5
    copy_megabytes: tuple[int, ...] = (30, 300)
    seed: int = 0
    out: Path = Path("benchmarks/results")

    @property
    def parameters(self) -> int:
        return sum(a * b + b for a, b in zip(self.layers, self.layers[1:], strict=False))

    def workload_flags(self) -> list[str]:
        """What the workload's processes have to know of it."""
        return [
            *("--layers", ",".join(map(str, self.layers))),
            *("--global-batch", str(self.global_batch)),
            *("--samples", str(self.samples)),
            *("--threads", str(self.threads)),
        ]


def parse() -> Settings:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=MEASUREMENTS, help="measure these alone")
    parser.add_argument("--workers", type=int, default=default.workers)
    parser.add_argument(
        "--trials", type=int, default=default.trials, help="kills, joins, drains and copies of each kind"
    )
    parser.add_argument(
        "--restart-trials",
        type=int,
        default=default.restart_trials,
        help="kills under each of torchrun and elastic-launch",
    )
    parser.add_argument("--pairs", type=int, default=default.pairs, help="paired turns against plain DDP")
    parser.add_argument("--block", type=int, default=default.block, help="steps of a turn")
    parser.add_argument("--layers", type=_numbers, default=default.layers, help="widths of the MLP, comma-separated")
    parser.add_argument("--global-batch", type=int, default=default.global_batch)
    parser.add_argument("--samples", type=int, default=default.samples, help="of the data set, which are one epoch")
    parser.add_argument("--threads", type=int, default=default.threads, help="of torch, in each worker")
    parser.add_argument(
        "--calm-steps",
        type=int,
        default=default.calm_steps,
        help="undisturbed steps before each trial; S is their median",
    )
    parser.add_argument(
        "--replacement-wait",
        type=float,
        default=default.replacement_wait,
        help="seconds that a killed worker's replacement waits before it imports torch, which would take the survivors' "
        "cores on a small machine while they are measured; 0 measures with it",
    )
    parser.add_argument("--copy-megabytes", type=_numbers, default=default.copy_megabytes, help="comma-separated")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--out", type=Path, default=default.out, help="folder for recovery.json and recovery.png")
    return Settings(**{**vars(parser.parse_args()), "only": tuple(parser.parse_args().only)})


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for timelines and checkpoints, in memory where the machine has such a place."""
    shared = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="elastic-benchmark-", dir=shared if os.access(shared, os.W_OK) else None)
