"""`elastic-job list` and `status`, for people."""

from __future__ import annotations

import json
import time
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .cluster import Cluster, Json
from .errors import Unreachable
from .looking_up import controller_pods, find_job, last_status, result_of, state_of, worker_pods
from .naming import CONTROLLER, ROLE_LABEL
from .pods import Pod, pod_of
from .published import read
from .request import Result

_REFRESH = 1.0  # seconds
_EVENTS = 10


def show_jobs(cluster: Cluster) -> int:
    selector = f"app.kubernetes.io/managed-by=elastic-job,{ROLE_LABEL}={CONTROLLER}"
    statuses = {item["metadata"]["name"]: read(item) for item in cluster.config_maps(selector)}
    table = _table("JOB", "STATE", "WORKERS", "PODS", "GENERATION", "STEP", "AGE")
    for job in cluster.jobs(selector):
        name = job["metadata"]["name"]
        status = statuses.get(f"{name}-status", {})
        server = status.get("server", {})
        running = sum(pod["state"] == "running" for pod in status.get("pods", []))
        table.add_row(
            name,
            state_of(job, status),
            str(server.get("world_size", "")),
            f"{running}/{status['max']}" if status else "",
            str(server.get("generation", "")),
            str(server.get("step", "")),
            _age(pod_of({**job, "status": {}}).created),
        )
    Console().print(table)
    return 0


def show_status(cluster: Cluster, name: str, watch: bool, as_json: bool) -> int:
    if as_json:
        job = find_job(cluster, name)
        print(
            json.dumps({"job": name, "state": state_of(job, status := last_status(cluster, name)), **status}, indent=2)
        )
        return 0
    if not watch:
        Console().print(_picture(cluster, name)[0])
        return 0
    with Live(auto_refresh=False) as live:
        while True:
            try:
                picture, over = _picture(cluster, name)
            except Unreachable as error:
                picture, over = Text(str(error)), False
            live.update(picture, refresh=True)
            if over:
                return 0
            time.sleep(_REFRESH)


def _picture(cluster: Cluster, name: str) -> tuple[RenderableType, bool]:
    """And whether the job is over."""
    job, status = find_job(cluster, name), last_status(cluster, name)
    result = result_of(job)
    parts: list[RenderableType] = [_summary(name, job, status, result)]
    ranks = {pod["uid"]: pod["ranks"] for pod in status.get("pods", [])}
    pods = [pod_of(item) for item in worker_pods(cluster, name)]
    table = _table("POD", "STATE", "RANKS", "NODE", "AGE", "WHY")
    for item in controller_pods(cluster, name):
        _add_pod(table, pod_of(item), "controller")
    for pod in sorted(pods, key=lambda pod: pod.created):
        _add_pod(table, pod, ", ".join(str(rank) for rank in ranks.get(pod.uid, [])))
    parts.append(table)
    events = status.get("events", [])[-_EVENTS:]
    if events:
        parts.append(Text("\n".join(f"{datetime.fromtimestamp(e['time']):%H:%M:%S}  {e['text']}" for e in events)))
    if result is not None and result.tail:
        parts.append(Text("last lines of the worker that failed:\n" + result.tail))
    return Group(*parts), result is not None


def _summary(name: str, job: Json, status: Json, result: Result | None) -> Text:
    server = status.get("server", {})
    lines = [f"{name}: {state_of(job, status)}"]
    if result is not None and result.code:
        lines.append(f"exit code {result.code}: {result.reason}")
    if server:
        lines.append(
            f"generation {server['generation']} with {server['world_size']} workers ({server['standby']} more wait), step"
            f" {server['step']} at {server['steps_per_second']:g} steps/s, {server['crashes']} crashes"
        )
        lines.append(f"{status['min']} to {status['max']} pods are wanted; known {_age(status['time'])} ago")
    else:
        lines.append("its controller has not said anything yet")
    return Text("\n".join(lines))


def _add_pod(table: Table, pod: Pod, ranks: str) -> None:
    state = "leaving" if pod.is_leaving else pod.state
    table.add_row(pod.name, state, ranks, pod.node, _age(pod.created), pod.trouble)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _age(since: float) -> str:
    seconds = max(0, int(time.time() - since))
    if seconds < 120:
        return f"{seconds}s"
    return f"{seconds // 60}m" if seconds < 7200 else f"{seconds // 3600}h"
