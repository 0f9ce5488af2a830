"""The measured values against the aims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Row
from benchmarks.summary import Summary, summarise

from .settings import Settings

Trials = Sequence[Mapping[str, Any]]
Results = Mapping[str, Trials]

BEYOND_TWO_STEPS = {"deletes": 100, "forced": 500, "preemptions": 100}
"""Milliseconds that the aim allows."""

_TAKEN = {
    "deletes": ("kubectl delete pod", 0),
    "forced": ("kubectl delete pod --grace-period=0 --force", 1),
    "preemptions": ("preemption", 0),
}
"""In words, and how many steps may be redone."""


def rows(results: Results) -> list[Row]:
    found: list[Row] = []
    for name, (words, redone) in _TAKEN.items():
        if trials := results.get(name):
            found += _taken_rows(trials, words, BEYOND_TWO_STEPS[name], redone)
        if trials := results.get(f"joins after {name}"):
            found += _joined_rows(trials, words)
    return found


def _taken_rows(trials: Trials, words: str, beyond: int, redone: int) -> list[Row]:
    limit = 2 * median(each["step_ms"] for each in trials) + beyond
    gap, again = _of(trials, "gap_ms"), _of(trials, "redone")
    return [
        Row(f"S, undisturbed step before: {words}", "ms", _of(trials, "step_ms")),
        Row(f"{words}: longest gap", "ms", gap, f"2 S + {beyond} = {limit:.0f}", gap.median <= limit),
        Row("  asked until all survivors have stepped", "ms", _of(trials, "all_ms")),
        Row("  steps redone", "steps", again, f"worst: {redone}", again.worst <= redone),
    ]


def _joined_rows(trials: Trials, words: str) -> list[Row]:
    found = [
        Row(f"the pod that follows ({words}): longest gap when it joins", "ms", _of(trials, "gap_ms")),
        Row("  steps redone", "steps", _of(trials, "redone"), "worst: 0", _of(trials, "redone").worst == 0),
    ]
    said = {
        "running": "created until it is seen running",
        "started": "created until its worker runs Python",
        "imported": "created until torch is imported",
        "ready": "created until it has joined",
        "committed": "created until its first step in the ring",
    }
    return found + [
        Row(f"  {label}", "ms", summarise([each["since_created_ms"][name] for each in trials]))
        for name, label in said.items()
    ]


def write_json(path: Path, settings: Settings, where: Mapping[str, Any], results: Results) -> None:
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    table = [asdict(row) for row in rows(results)]
    document = {"machine": where, "settings": plain, "table": table, "trials": results}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _of(trials: Trials, key: str) -> Summary:
    return summarise([each[key] for each in trials])
