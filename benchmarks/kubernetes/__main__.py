"""`python -m benchmarks.kubernetes`: what pods that are deleted, preempted and made cost the others, on a real cluster.

Prints a table, writes kubernetes.json (all trials) and kubernetes.png. S is the undisturbed step time before each trial.
"""

from __future__ import annotations

import sys
import time

from benchmarks.jobs import BenchmarkError
from benchmarks.report import machine, print_table
from elastic_launch.k8s.errors import ClusterError

from . import figures, plot, trials
from .job import namespace
from .settings import parse


def main() -> int:
    chosen = parse()
    where = machine()
    print(f"{chosen.workers} pods, {where['cpu']}, {where['cores']} cores", flush=True)
    results: dict[str, list[trials.Trial]] = {}
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        with namespace() as cluster:
            for name in chosen.only:
                began = time.monotonic()
                if name == "preemptions":
                    taken, joined = trials.preemptions(cluster, chosen)
                else:
                    taken, joined = trials.deletes(cluster, chosen, force=name == "forced")
                results[name], results[f"joins after {name}"] = taken, joined
                print(f"measured {name} in {time.monotonic() - began:.0f} s", flush=True)
                figures.write_json(chosen.out / "kubernetes.json", chosen, where, results)
                plot.draw(chosen.out / "kubernetes.png", results, where)
    except (BenchmarkError, ClusterError) as error:
        print(f"benchmarks.kubernetes: {error}", file=sys.stderr)
        return 1
    print_table(figures.rows(results))
    print(f"wrote {chosen.out / 'kubernetes.json'} and kubernetes.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
