"""The measured values as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as ShownTable

from .figures import CHANGES, change, formed_ms, memory_per_agent

Results = Mapping[str, Sequence[Mapping[str, Any]]]
Table = Mapping[str, Sequence[Mapping[str, Any]]]
_AIM_AT = 1000  # agents
_AIM_FORMED, _AIM_TOLD = 2000.0, 300.0  # milliseconds


def print_tables(results: Results) -> None:
    for store, of_store in results.items():
        table = ShownTable(title=f"rendezvous server, {store} store, milliseconds unless said otherwise")
        table.add_column("")
        for result in of_store:
            table.add_column(f"{result['agents']:,} agents", justify="right")
        for label, value in _rows():
            table.add_row(label, *[value(result) for result in of_store])
        Console(width=150).print(table)
        for line in aims(of_store):
            print(line)


def aims(of_store: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for result in of_store:
        if result["agents"] == _AIM_AT:
            lines.append(_verdict("formed after the last arrival", formed_ms(result), _AIM_FORMED))
            lines += [
                _verdict(f"{words}: told, p99", change(result, name).told_p99, _AIM_TOLD)
                for name, (_, _, words) in CHANGES.items()
            ]
    return lines


def _verdict(what: str, value: float, limit: float) -> str:
    met = "met" if value <= limit else "NOT MET"
    return f"{_AIM_AT:,} agents, {what}: {value:.0f} ms, at most {limit:.0f} ms wanted: {met}"


def _rows() -> list[tuple[str, Callable[[Mapping[str, Any]], str]]]:
    rows: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("connected and ready, first to last", lambda r: f"{r['arrival']['arriving_ms']:,.0f}"),
        ("last arrival to all released", lambda r: f"{formed_ms(r):,.0f}"),
        ("  CPU of the server, of all arrivals", lambda r: f"{1e3 * r['arrival']['cpu']:,.0f}"),
    ]
    for name, (_, _, words) in CHANGES.items():
        rows += [
            (words, lambda r: ""),
            ("  told: median, p99 of all agents", _of(name, "{0.told_median:,.1f}  {0.told_p99:,.1f}")),
            ("  last one told: median, worst", _of(name, "{0.last_told:,.1f}  {0.last_told_worst:,.1f}")),
            ("  all released: median, worst", _of(name, "{0.last_released:,.1f}  {0.last_released_worst:,.1f}")),
            ("  CPU of the server", _of(name, "{0.cpu_ms:,.1f}")),
            ("  kB sent by the server", lambda r, name=name: f"{change(r, name).bytes / 1e3:,.1f}"),  # type: ignore[misc]
            ("  bytes for each agent", lambda r, name=name: f"{change(r, name).bytes / r['agents']:,.0f}"),  # type: ignore[misc]
        ]
    return [
        *rows,
        ("idle: CPU of the server, % of a core", lambda r: f"{100 * r['idle']['cpu']:.1f}"),
        ("idle: bytes a second for each agent", lambda r: f"{r['idle']['bytes'] / r['agents']:.0f}"),
        ("memory of the server, MB", lambda r: f"{r['memory']['full'] / 1e6:,.0f}"),
        ("  for each agent, kB", lambda r: f"{memory_per_agent(r) / 1e3:,.0f}"),
        ("  after all changes, MB", lambda r: f"{r['memory']['after'] / 1e6:,.0f}"),
    ]


def _of(name: str, shown: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda result: shown.format(change(result, name))


def figures(results: Results) -> Table:
    """The numbers of the table, for each store and number of agents."""
    return {
        store: [
            {
                "agents": result["agents"],
                "trials": len(result["trials"]) // 2,
                "load": result["load"],
                "arriving_ms": result["arrival"]["arriving_ms"],
                "formed_ms": formed_ms(result),
                "arrival_cpu_s": result["arrival"]["cpu"],
                **{name: asdict(change(result, name)) for name in CHANGES},
                "idle": result["idle"],
                "memory": {**result["memory"], "per_agent": memory_per_agent(result)},
            }
            for result in of_store
        ]
        for store, of_store in results.items()
    }


def write_json(
    path: Path, settings: Mapping[str, Any], where: Mapping[str, Any], results: Results, keep: bool
) -> Table:
    """The figures, and of each trial all but the single agents' times, which would be megabytes: their order statistics.

    With `keep`, what the file holds of other stores and numbers of agents stays. Returns all figures that it has then.
    """
    trials = {
        store: [
            {**result, "arrival": _short(result["arrival"]), "trials": _short_trials(result)} for result in of_store
        ]
        for store, of_store in results.items()
    }
    table = figures(results)
    if keep and path.exists():
        old = json.loads(path.read_text())
        table, trials = _joined(old["table"], table), _joined(old["trials"], trials)
    document = {"machine": where, "settings": settings, "table": table, "trials": trials}
    path.write_text(json.dumps(document, indent=1) + "\n")
    return table


def _joined(old: Table, new: Table) -> dict[str, list[Mapping[str, Any]]]:
    joined = {}
    for store in [*old, *[store for store in new if store not in old]]:
        measured = {entry["agents"]: entry for entry in [*old.get(store, ()), *new.get(store, ())]}
        joined[store] = [measured[agents] for agents in sorted(measured)]
    return joined


def _short_trials(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"kind": trial["kind"], "lost": _short(trial["lost"]), "joined": _short(trial["joined"])}
        for trial in result["trials"]
    ]


def _short(change: Mapping[str, Any]) -> dict[str, Any]:
    shares = (0.0, 0.5, 0.99, 1.0)
    times = {key: sorted(change[key]) for key in ("told_ms", "released_ms")}
    ends = {
        key: {f"{share:g}": round(values[min(len(values) - 1, int(share * len(values)))], 2) for share in shares}
        for key, values in times.items()
    }
    return {**change, **ends}
