"""`python -m benchmarks.rendezvous`: what the rendezvous server costs as the agents become many.

Prints a table, writes rendezvous.json (all trials) and rendezvous.png, as far as it has come after each size.
"""

from __future__ import annotations

import sys
import time
from itertools import product
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
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        raise_descriptor_limit(max(chosen.agents) + SPARE)
        with TemporaryDirectory(prefix="elastic-rendezvous-") as name:
            for agents, store in product(chosen.agents, chosen.stores):
                began = time.monotonic()
                with stores.serving(store, Path(name)) as flags:
                    if flags is None:
                        print(f"left out the store {store}: {stores.MISSING}", flush=True)
                        continue
                    results.setdefault(store, []).append(measuring.measure(chosen, agents, flags, Path(name)))
                print(f"measured {agents} agents, {store} store, in {time.monotonic() - began:.0f} s", flush=True)
                plain = measuring.plain_settings(chosen)
                table = report.write_json(chosen.out / "rendezvous.json", plain, where, results, chosen.keep)
                plot.draw(chosen.out / "rendezvous.png", table, where)
    except (BenchmarkError, DescriptorLimit) as error:
        print(f"benchmarks.rendezvous: {error}", file=sys.stderr)
        return 1
    report.print_tables(results)
    print(f"wrote {chosen.out / 'rendezvous.json'} and rendezvous.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
