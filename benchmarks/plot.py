"""The measured values as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_PATH = {
    "broken": "detect and abort",
    "announced": "announce",
    "exchanged": "exchange reports",
    "connected": "connect the ring",
    "copied": "copy, compare digests",
    "released": "release",
    "first step": "first step",
}
_PLANNED = {"stopped": "the step before", **{name: label for name, label in _PATH.items() if name != "broken"}}


def draw(path: Path, results: Mapping[str, Any], where: Mapping[str, Any]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5))
    _draw_recovery(axes[0][0], results)
    _draw_phases(axes[0][1], results)
    _draw_gaps(axes[1][0], results)
    _draw_rates(axes[1][1], results)
    figure.suptitle(f"Elastic recovery on one machine ({where['cpu']}, {where['cores']} cores, {where['date']})")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_recovery(axes: Any, results: Mapping[str, Any]) -> None:
    groups = {
        "first\nsurvivor": [t["first_ms"] for t in results.get("kills", [])],
        "all\nsurvivors": [t["all_ms"] for t in results.get("kills", [])],
        "unmodified\nscript": [t["all_ms"] for t in results.get("restarts", [])],
        "torchrun,\nsame script": [t["all_ms"] for t in results.get("torchrun", [])],
    }
    scatter(axes, groups)
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.set_title("kill -9 of a worker to the next committed step")
    if results.get("kills"):
        step = median(t["step_ms"] for t in results["kills"])
        axes.axhline(step, color="grey", linestyle=":", label=f"S, undisturbed step: {step:.0f} ms")
        axes.axhline(2 * step + 100, color="tab:red", linestyle="--", label="aim for all survivors: 2 S + 100 ms")
        axes.legend(fontsize="small")


def _draw_phases(axes: Any, results: Mapping[str, Any]) -> None:
    kinds = {"kill": ("kills", _PATH), "join": ("joins", _PLANNED), "drain": ("drains", _PLANNED)}
    labelled: set[str] = set()
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    for row, (_, (key, path)) in enumerate(kinds.items()):
        trials = results.get(key) or []
        if not trials:
            continue
        left = 0.0 if key == "kills" else _median_of_last(trials, "stopped")
        for index, name in enumerate(path):
            end = _median_of_last(trials, name)
            if index or key == "kills":
                axes.barh(
                    row, end - left, left=left, color=colours[index], label=None if name in labelled else path[name]
                )
                labelled.add(name)
                left = max(left, end)
    axes.set_yticks(range(len(kinds)), list(kinds))
    axes.set_xlabel("ms since the kill, the announcement, the SIGTERM; last survivor, medians")
    axes.set_title("where the time goes")
    axes.legend(fontsize="small")


def _draw_gaps(axes: Any, results: Mapping[str, Any]) -> None:
    groups = {}
    for key, name in (("kills", "kill"), ("joins", "join"), ("drains", "drain")):
        trials = results.get(key, [])
        groups[f"S before\na {name}"] = [t["step_ms"] for t in trials]
        groups[f"gap at\na {name}"] = [t["gap_ms"] for t in trials]
    scatter(axes, groups)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms")
    axes.set_title("longest gap between two commits on the survivors")


def _draw_rates(axes: Any, results: Mapping[str, Any]) -> None:
    steady = results.get("steady", [])
    copies = results.get("copies", [])
    groups = {"steady:\nelastic / plain DDP": [t["elastic"] / t["plain"] for t in steady]}
    for size in sorted({t["megabytes"] for t in copies}):
        of_size = [t for t in copies if t["megabytes"] == size]
        groups[f"copy {size} MB\n1 source / raw"] = [t["copy"] / t["raw"] for t in of_size]
        groups[f"copy {size} MB\n{of_size[0]['sources']} sources / raw"] = [t["striped"] / t["raw"] for t in of_size]
    scatter(axes, groups)
    axes.axhline(1.0, color="grey", linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_title("step time and copy rate, each relative to its plain counterpart")


def scatter(axes: Any, groups: Mapping[str, Sequence[float]]) -> None:
    for index, values in enumerate(groups.values()):
        if not values:
            continue
        spread = [index + 0.25 * ((i * 7919 % 101) / 101 - 0.5) for i in range(len(values))]
        axes.scatter(spread, values, s=14, alpha=0.6)
        axes.hlines(median(values), index - 0.3, index + 0.3, color="black")
    axes.set_xticks(range(len(groups)), list(groups), fontsize="small")


def _median_of_last(trials: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(median(max(survivor[name] for survivor in trial["milestones"]) for trial in trials))
