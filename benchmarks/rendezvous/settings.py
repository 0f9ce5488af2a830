"""The sizes of a run, from the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from elastic_launch.rendezvous.membership.members import Timing


@dataclass(frozen=True)
class Settings:
    """`reporters` is how many peers report the broken ring of a dead one; `idle` is in seconds."""

    agents: tuple[int, ...] = (10, 100, 1000, 5000)
    stores: tuple[str, ...] = ("memory", "etcd")
    trials: int = 12
    reporters: int = 2
    processes: int = 1
    idle: float = 10.0
    lease: float = Timing().lease
    seed: int = 0
    out: Path = Path("benchmarks/results")
    keep: bool = False
    profile: Path | None = None


def parse() -> Settings:
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rendezvous",
        description="Times, CPU, memory and bytes of the rendezvous server, against the number of agents.",
    )
    parser.add_argument("--agents", type=int, nargs="+", default=default.agents, help="default: 10 100 1000 5000")
    parser.add_argument(
        "--store",
        nargs="+",
        default=default.stores,
        dest="stores",
        help="memory, etcd (started here, skipped where there is none), or a URL of the server's own --store",
    )
    parser.add_argument("--trials", type=int, default=default.trials, help="deaths of each kind")
    parser.add_argument(
        "--reporters", type=int, default=default.reporters, help="peers that report the ring of a dead member as broken"
    )
    parser.add_argument("--processes", type=int, default=default.processes, help="that the agents are spread over")
    parser.add_argument("--idle", type=float, default=default.idle, help="seconds of heartbeats alone")
    parser.add_argument("--lease", type=float, default=default.lease, help="the server's; agents beat 3 times in it")
    parser.add_argument("--seed", type=int, default=default.seed, help="decides who dies")
    parser.add_argument("--out", type=Path, default=default.out, help="folder for rendezvous.json and rendezvous.png")
    parser.add_argument("--keep", action="store_true", help="what is there of other stores and numbers of agents")
    parser.add_argument(
        "--profile", type=Path, help="folder for cProfile's statistics of the server, which slow it down"
    )
    chosen = vars(parser.parse_args())
    return Settings(**{**chosen, "agents": tuple(chosen["agents"]), "stores": tuple(chosen["stores"])})
