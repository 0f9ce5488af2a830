"""The measured values against the aims, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .machine import machine as machine_alone
from .settings import Settings
from .summary import Summary, interval_of_median, summarise

Trials = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """A line of the table. `met` is None where there is no aim."""

    what: str
    unit: str
    values: Summary
    aim: str = ""
    met: bool | None = None


def machine() -> dict[str, Any]:
    return {**machine_alone(), "torch": torch.__version__}


def rows(results: Mapping[str, Any]) -> list[Row]:
    found: list[Row] = []
    if trials := results.get("kills"):
        found += _kill_rows(trials)
    if trials := results.get("joins"):
        found += _join_rows(trials)
    if trials := results.get("drains"):
        found += _drain_rows(trials)
    if trials := results.get("steady"):
        found += _steady_rows(trials)
    if trials := results.get("copies"):
        found += _copy_rows(trials)
    for name, launcher in (("restarts", "elastic-launch, unmodified script"), ("torchrun", "torchrun, same script")):
        if trials := results.get(name):
            found += [
                Row(f"{launcher} with a checkpoint a step, undisturbed step", "ms", _of(trials, "step_ms")),
                Row(f"{launcher}, kill to next commit, first worker", "ms", _of(trials, "first_ms")),
                Row(f"{launcher}, kill to next commit, all workers", "ms", _of(trials, "all_ms")),
                Row(f"{launcher}, steps redone", "steps", _of(trials, "redone")),
            ]
    return found


def _kill_rows(trials: Trials) -> list[Row]:
    step = median(each["step_ms"] for each in trials)
    all_ms = _of(trials, "all_ms")
    return [
        Row("S, undisturbed step before a kill", "ms", _of(trials, "step_ms")),
        Row("kill to next commit, first survivor", "ms", _of(trials, "first_ms")),
        Row("kill to next commit, all survivors", "ms", all_ms, *_at_most(all_ms.median, 2 * step + 100, "2 S + 100")),
        Row("  the same, p95", "ms", all_ms, *_at_most(all_ms.p95, 2 * step + 250, "p95: 2 S + 250")),
        Row("  longest gap between commits", "ms", _of(trials, "gap_ms")),
        Row("  steps redone", "steps", _of(trials, "redone"), *_at_most(_of(trials, "redone").worst, 1, "worst: 1")),
        *_phase_rows(trials, died=True),
    ]


def _join_rows(trials: Trials) -> list[Row]:
    step = median(each["step_ms"] for each in trials)
    gap, redone = _of(trials, "gap_ms"), _of(trials, "redone")
    copying = median(each["copy_ms"] for each in trials)
    limit = 2 * step + 150 + copying
    starts = {name: summarise([t["joiner_start_ms"][name] for t in trials]) for name in trials[0]["joiner_start_ms"]}
    return [
        Row("S, undisturbed step before a join", "ms", _of(trials, "step_ms")),
        Row("join, longest gap on survivors", "ms", gap, *_at_most(gap.median, limit, "2 S + 150 + copy")),
        Row("  of it the copy", "ms", _of(trials, "copy_ms")),
        Row("  steps redone", "steps", redone, *_at_most(redone.worst, 0, "worst: 0")),
        *_phase_rows(trials),
        Row("joiner's agent started to its Python running", "ms", starts["started"]),
        Row("  to torch imported", "ms", starts["imported"]),
        Row("  to ready (joined, counted)", "ms", starts["ready"]),
        Row("  to member", "ms", starts["changed"]),
        Row("  to its first committed step", "ms", starts["committed"]),
    ]


def _drain_rows(trials: Trials) -> list[Row]:
    step = median(each["step_ms"] for each in trials)
    gap, redone = _of(trials, "gap_ms"), _of(trials, "redone")
    return [
        Row("S, undisturbed step before a drain", "ms", _of(trials, "step_ms")),
        Row("drain, longest gap on survivors", "ms", gap, *_at_most(gap.median, step + 100, "S + 100")),
        Row("  steps redone", "steps", redone, *_at_most(redone.worst, 0, "worst: 0")),
        *_phase_rows(trials),
        Row("  SIGTERM to the agent's exit", "ms", _of(trials, "left_ms")),
    ]


def _steady_rows(trials: Trials) -> list[Row]:
    cost = [100 * (each["elastic"] / each["plain"] - 1) for each in trials]
    cpu = [100 * (each["elastic_cpu"] / each["plain_cpu"] - 1) for each in trials]
    low, high = interval_of_median(cost)
    cpu_low, cpu_high = interval_of_median(cpu)
    return [
        Row("plain DDP, a step", "ms", _of(trials, "plain")),
        Row("elastic, a step in paired turns", "ms", _of(trials, "elastic")),
        Row(
            f"steady cost (95 % interval of the median: {low:.1f} to {high:.1f})",
            "%",
            summarise(cost),
            *_at_most(median(cost), 2, "2 %"),
        ),
        Row(f"  in CPU time ({cpu_low:.1f} to {cpu_high:.1f})", "%", summarise(cpu)),
    ]


def _copy_rows(trials: Trials) -> list[Row]:
    found = []
    for size in sorted({each["megabytes"] for each in trials}):
        of_size = [each for each in trials if each["megabytes"] == size]
        shares = [100 * each["copy"] / each["raw"] for each in of_size]
        striped = [100 * each["striped"] / each["raw"] for each in of_size]
        sources = of_size[0]["sources"]
        found += [
            Row(f"raw loopback copy of {size} MB", "GB/s", _slowest_last(of_size, "raw")),
            Row(f"state copy of {size} MB from 1 source", "GB/s", _slowest_last(of_size, "copy")),
            Row(f"state copy of {size} MB from {sources} sources", "GB/s", _slowest_last(of_size, "striped")),
            Row("  1 source, share of raw", "%", _worst_is_low(shares), ">= 60 %", median(shares) >= 60),
            Row(f"  {sources} sources, share of raw", "%", _worst_is_low(striped), ">= 60 %", median(striped) >= 60),
        ]
    return found


def _phase_rows(trials: Trials, died: bool = False) -> list[Row]:
    """Where the time goes: from one milestone to the next, on the last survivor to reach each."""
    reached = {
        name: [max(survivor.get(name, math.nan) for survivor in trial["milestones"]) for trial in trials]
        for name in trials[0]["milestones"][0]
    }
    path: list[tuple[str, list[float]]] = [("", [0.0] * len(trials))]
    if died:
        path.append(("detect: until the process is gone", [trial["died_ms"] for trial in trials]))
        first = [min(survivor["broken"] for survivor in trial["milestones"]) for trial in trials]
        path.append(("detect: until the first ring is broken", first))
        path.append(("abort: until the last ring is broken", reached["broken"]))
    else:
        path.append(("announce: until heard", reached["heard"]))
        path.append(("boundary: until the step is over", reached["stopped"]))
    path += [
        ("announce: until the announcement is taken", reached["announced"]),
        ("exchange: until all reports are there", reached["exchanged"]),
        ("form: until the ring is connected", reached["connected"]),
        ("copy: until digests agree", reached["copied"]),
        ("release: until the server has it durable", reached["released"]),
        ("first step", reached["first step"]),
        ("second step", reached["second step"]),
    ]
    return [
        Row(f"    {name}", "ms", summarise([b - a for a, b in zip(before, after, strict=True)]))
        for (_, before), (name, after) in pairwise(path)
    ]


def print_table(table: Sequence[Row]) -> None:
    print(f"{'':62}{'median':>10}{'p95':>10}{'worst':>10}   aim")
    for row in table:
        values = "".join(f"{number:10.2f}" for number in (row.values.median, row.values.p95, row.values.worst))
        verdict = "" if row.met is None else f"   {row.aim}: {'met' if row.met else 'NOT MET'}"
        print(f"{row.what + ', ' + row.unit if row.unit else row.what:62}{values}{verdict}")


def write_json(path: Path, settings: Settings, where: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    table = [asdict(row) for row in rows(results)]
    document = {"machine": where, "settings": plain, "table": table, "trials": results}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _of(trials: Trials, key: str) -> Summary:
    return summarise([each[key] for each in trials])


def _slowest_last(trials: Trials, key: str) -> Summary:
    return _worst_is_low([each[key] for each in trials])


def _worst_is_low(values: Sequence[float]) -> Summary:
    turned = summarise([-value for value in values])
    return Summary(turned.count, -turned.median, -turned.p95, -turned.worst)


def _at_most(value: float, limit: float, formula: str) -> tuple[str, bool]:
    return f"{formula} = {limit:.0f}" if any(c.isalpha() and c.isupper() for c in formula) else formula, value <= limit
