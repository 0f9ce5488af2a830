"""How the cost grows with the agents, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .figures import CHANGES

Table = Mapping[str, Sequence[Mapping[str, Any]]]
_STYLES = ("solid", "dashed", "dotted")


def draw(path: Path, table: Table, where: Mapping[str, Any]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5))
    for style, of_store in zip(_STYLES, table.values(), strict=False):
        agents = [row["agents"] for row in of_store]
        _draw_times(axes[0][0], agents, of_store, style)
        _draw_cpu(axes[0][1], agents, of_store, style)
        _draw_bytes(axes[1][0], agents, of_store, style)
        _draw_memory(axes[1][1], agents, of_store, style)
    for each in axes.flat:
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_xlabel("agents")
        each.grid(True, which="major", alpha=0.3)
        if each.get_legend_handles_labels()[1]:
            each.legend(fontsize="small", loc="lower right")
    cores = f"{where['cores']} cores shared by server and agents"
    lines = ", ".join(f"{style}: {store} store" for style, store in zip(_STYLES, table, strict=False))
    title = f"The rendezvous server and the number of agents ({where['cpu']}, {cores}, {where['date']})"
    figure.suptitle(f"{title}\n{lines}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(text: str, style: str) -> str | None:
    """The stores differ by their lines' style alone."""
    return text if style == _STYLES[0] else None


def _draw_times(axes: Any, agents: list[int], of_store: Sequence[Mapping[str, Any]], style: str) -> None:
    for index, name in enumerate(CHANGES):
        values = [row[name] for row in of_store]
        colour = f"C{index}"
        axes.plot(
            agents,
            [value["told_p99"] for value in values],
            linestyle=style,
            marker="o",
            color=colour,
            label=_label(f"{name}: told, p99", style),
        )
        axes.plot(
            agents,
            [value["last_released"] for value in values],
            linestyle=style,
            marker="s",
            color=colour,
            alpha=0.5,
            label=_label(f"{name}: all released", style),
        )
    axes.plot(
        agents,
        [row["formed_ms"] for row in of_store],
        linestyle=style,
        marker="^",
        color="black",
        label=_label("first generation after the last arrival", style),
    )
    axes.set_ylim(bottom=1)
    axes.set_ylabel("ms")
    axes.set_title("time of a change, since its cause")


def _draw_cpu(axes: Any, agents: list[int], of_store: Sequence[Mapping[str, Any]], style: str) -> None:
    for index, name in enumerate(CHANGES):
        cpu = [max(0.1, row[name]["cpu_ms"]) for row in of_store]
        axes.plot(agents, cpu, linestyle=style, marker="o", color=f"C{index}", label=_label(name, style))
    idle = [1e3 * max(1e-4, row["idle"]["cpu"]) for row in of_store]
    axes.plot(agents, idle, linestyle=style, marker="^", color="black", label=_label("heartbeats, each second", style))
    axes.set_ylabel("ms of CPU")
    axes.set_title("what the server computes")


def _draw_bytes(axes: Any, agents: list[int], of_store: Sequence[Mapping[str, Any]], style: str) -> None:
    for index, name in enumerate(CHANGES):
        sent = [row[name]["bytes"] / 1e3 for row in of_store]
        axes.plot(agents, sent, linestyle=style, marker="o", color=f"C{index}", label=_label(name, style))
    axes.set_ylabel("kB")
    axes.set_title("what the server sends for a change")


def _draw_memory(axes: Any, agents: list[int], of_store: Sequence[Mapping[str, Any]], style: str) -> None:
    axes.plot(agents, [row["memory"]["full"] / 1e6 for row in of_store], linestyle=style, marker="o", color="C0")
    axes.set_ylabel("MB")
    axes.set_title("resident memory of the server")
