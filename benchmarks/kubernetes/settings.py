"""The sizes of a run, from the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.settings import Settings as Workload

MEASUREMENTS = ("deletes", "forced", "preemptions")


@dataclass(frozen=True)
class Settings:
    """`seed` decides whose pod is deleted and when, in the step's phase. `cpu` is what each worker of the job requests that
    is preempted: `workers` of them and no more are to fit."""

    only: tuple[str, ...] = MEASUREMENTS
    workers: int = 3
    trials: int = 10
    layers: tuple[int, ...] = Workload.layers
    global_batch: int = Workload.global_batch
    samples: int = Workload.samples
    threads: int = 1
    calm_steps: int = 30
    cpu: str = "600m"
    seed: int = 0
    out: Path = Path("benchmarks/results")

    def workload_flags(self) -> list[str]:
        flags = Workload(layers=self.layers, global_batch=self.global_batch, samples=self.samples, threads=self.threads)
        return flags.workload_flags()


def parse() -> Settings:
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kubernetes",
        description="What deleted, preempted and joining pods cost the others. Needs KUBECONFIG to name a cluster whose node "
        "is this machine.",
    )
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=MEASUREMENTS, help="measure these alone")
    parser.add_argument("--workers", type=int, default=default.workers)
    parser.add_argument("--trials", type=int, default=default.trials, help="of each kind")
    parser.add_argument(
        "--calm-steps", type=int, default=default.calm_steps, help="before each trial; S is their median"
    )
    parser.add_argument(
        "--cpu", default=default.cpu, help="of each worker and of the pod that preempts one (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--out", type=Path, default=default.out, help="folder for kubernetes.json and kubernetes.png")
    chosen = vars(parser.parse_args())
    return Settings(**{**chosen, "only": tuple(chosen["only"])})
