"""The measured values as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.plot import scatter

from .figures import Results

_TAKEN = {"deletes": "delete", "forced": "delete\n--force", "preemptions": "preemption"}


def draw(path: Path, results: Results, where: Mapping[str, Any]) -> None:
    figure, (gaps, starts) = plt.subplots(1, 2, figsize=(12, 5))
    _draw_gaps(gaps, results)
    _draw_starts(starts, results)
    figure.suptitle(f"Pods that go and come, one node ({where['cpu']}, {where['cores']} cores, {where['date']})")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_gaps(axes: Any, results: Results) -> None:
    groups: dict[str, list[float]] = {}
    steps: list[float] = []
    for name, label in _TAKEN.items():
        groups[label] = [each["gap_ms"] for each in results.get(name, ())]
        groups[f"join after\n{label}"] = [each["gap_ms"] for each in results.get(f"joins after {name}", ())]
        steps += [each["step_ms"] for each in results.get(name, ())]
    scatter(axes, groups)
    step = median(steps)
    axes.axhline(step, color="grey", linestyle=":", label=f"S, undisturbed step: {step:.0f} ms")
    axes.axhline(2 * step + 100, color="tab:green", linestyle="--", label="aim, planned: 2 S + 100 ms")
    axes.axhline(2 * step + 500, color="tab:red", linestyle="--", label="aim, forced: 2 S + 500 ms")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms")
    axes.set_title("longest gap between two steps on the survivors")
    axes.legend(fontsize="small")


def _draw_starts(axes: Any, results: Results) -> None:
    moments = ("running", "started", "imported", "ready", "committed")
    labels = ("pod\nrunning", "Python\nruns", "torch\nimported", "joined", "first step\nin the ring")
    joins = [each for name in _TAKEN for each in results.get(f"joins after {name}", ())]
    scatter(
        axes,
        {
            label: [each["since_created_ms"][moment] / 1e3 for each in joins]
            for moment, label in zip(moments, labels, strict=True)
        },
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("s since the pod was created")
    axes.set_title("a pod from its creation to its first step")
