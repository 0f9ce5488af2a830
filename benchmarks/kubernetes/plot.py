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

from .figures import BEYOND_TWO_STEPS, Results

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
    """Each kind has its own S: a machine is not equally busy at all times."""
    groups: dict[str, list[float]] = {}
    for index, (name, label) in enumerate(_TAKEN.items()):
        groups[label] = [each["gap_ms"] for each in results.get(name, ())]
        groups[f"join after\n{label}"] = [each["gap_ms"] for each in results.get(f"joins after {name}", ())]
        if trials := results.get(name):
            step = median(each["step_ms"] for each in trials)
            aim = 2 * step + BEYOND_TWO_STEPS[name]
            for value, colour, style, words in ((step, "grey", ":", "S"), (aim, "tab:red", "--", "aim for the median")):
                known = words in axes.get_legend_handles_labels()[1]
                place = (2 * index - 0.4, 2 * index + 0.4)
                axes.hlines(value, *place, color=colour, linestyle=style, label=None if known else words)
    scatter(axes, groups)
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
