"""`python -m benchmarks.recovery`: what a kill, a join, a drain, a steady step and the state copy cost on this machine.

Prints a table, writes recovery.json (all trials) and recovery.png. S is the undisturbed step time just before each trial.
"""

from __future__ import annotations

import time
from typing import Any

from . import changes, copies, kills, report, restarts, settings, steady
from .plot import draw


def main() -> None:
    chosen = settings.parse()
    where = report.machine()
    print(
        f"{chosen.workers} workers, {chosen.parameters:,} parameters, {where['cpu']}, {where['cores']} cores",
        flush=True,
    )
    results: dict[str, Any] = {}
    for name in chosen.only:
        began = time.monotonic()
        if name == "kills":
            results["kills"] = kills.measure(chosen)
        elif name == "changes":
            results["joins"], results["drains"] = changes.measure(chosen)
        elif name == "steady":
            results["steady"] = steady.measure(chosen)
        elif name == "copies":
            results["copies"] = copies.measure(chosen)
        elif name == "restarts":
            results["torchrun"] = restarts.measure(chosen, "torch.distributed.run")
            results["restarts"] = restarts.measure(chosen, "elastic_launch.launcher.main")
        print(f"measured {name} in {time.monotonic() - began:.0f} s", flush=True)
    report.print_table(report.rows(results))
    chosen.out.mkdir(parents=True, exist_ok=True)
    report.write_json(chosen.out / "recovery.json", chosen, where, results)
    draw(chosen.out / "recovery.png", results, where)
    print(f"wrote {chosen.out / 'recovery.json'} and recovery.png")


if __name__ == "__main__":
    main()
