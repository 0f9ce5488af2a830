"""`python -m benchmarks.rendezvous`: what the rendezvous server costs as the agents become many.

Prints a table, writes rendezvous.json (all trials) and rendezvous.png.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.jobs import BenchmarkError
from benchmarks.machine import machine

from . import measuring, plot, report, stores
from .limits import SPARE, DescriptorLimit, raise_descriptor_limit
from .settings import parse


def main() -> int:
    chosen = parse()
    where = machine()
    print(f"{where['cpu']}, {where['cores']} cores, shared by the server and the agents", flush=True)
    results: dict[str, list[dict[str, Any]]] = {}
    try:
        raise_descriptor_limit(max(chosen.agents) + SPARE)
        with TemporaryDirectory(prefix="elastic-rendezvous-") as name:
            for store in chosen.stores:
                for agents in chosen.agents:
                    began = time.monotonic()
                    with stores.serving(store, Path(name)) as flags:
                        if flags is None:
                            print(f"left out the store {store}: {stores.MISSING}", flush=True)
                            break
                        results.setdefault(store, []).append(measuring.measure(chosen, agents, flags, Path(name)))
                    took = time.monotonic() - began
                    print(f"measured {agents} agents, {store} store, in {took:.0f} s", flush=True)
    except (BenchmarkError, DescriptorLimit) as error:
        print(f"benchmarks.rendezvous: {error}", file=sys.stderr)
        return 1
    report.print_tables(results)
    chosen.out.mkdir(parents=True, exist_ok=True)
    report.write_json(chosen.out / "rendezvous.json", measuring.plain_settings(chosen), where, results)
    plot.draw(chosen.out / "rendezvous.png", results, where)
    print(f"wrote {chosen.out / 'rendezvous.json'} and rendezvous.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
