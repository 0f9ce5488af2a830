"""What a controller tells the world about its job, and where: one ConfigMap, which outlives it.

So `elastic-job status` needs no way to the rendezvous server, and still works when the job is over.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from .cluster import Cluster, Json
from .errors import ClusterError
from .naming import status_name
from .pods import Pod

logger = logging.getLogger(__name__)

_FIELD = "status.json"
_EVENTS = 50
_OFTEN, _SELDOM = 1.0, 5.0  # seconds between two writings, for changes that matter and for progress


class Published:
    """The status as it was last written."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster = cluster
        self._name = status_name(job)
        self._config_map: Json | None = None
        self._before: list[Any] = []
        self._written_at = float("-inf")
        self._written: Any = None

    def due(self, status: Json) -> bool:
        """Whether `status` is worth writing now."""
        waited = time.monotonic() - self._written_at
        return waited >= _SELDOM or (waited >= _OFTEN and _gist(status) != self._written)

    def write(self, status: Json) -> None:
        """Blocks. An API server that does not answer is no error: the next one is newer anyway."""
        self._written_at, self._written = time.monotonic(), _gist(status)
        try:
            if self._config_map is None:
                self._config_map = self._cluster.config_map(self._name)
                self._before = read(self._config_map).get("events", [])
            events = [*self._before, *status["events"]][-_EVENTS:]
            text = json.dumps({**status, "events": events})
            self._config_map = self._cluster.replace_config_map({**self._config_map, "data": {_FIELD: text}})
        except ClusterError as error:
            self._config_map = None
            logger.warning("the status cannot be written: %s", error)


def read(config_map: Json) -> Json:
    """The status in a ConfigMap, empty if there is none yet."""
    status: Json = json.loads((config_map.get("data") or {}).get(_FIELD, "{}"))
    return status


def status_of(snapshot: Json, pods: list[Pod], events: list[Json], sizes: tuple[int, int]) -> Json:
    """Plain JSON; `sizes` are min and max in pods."""
    ranks: dict[str, list[int]] = {}
    for worker in snapshot.get("workers", []):
        if worker["rank"] >= 0:
            ranks.setdefault(worker["pod"], []).append(worker["rank"])
    return {
        "time": time.time(),
        "min": sizes[0],
        "max": sizes[1],
        "server": {key: value for key, value in snapshot.items() if key != "workers"},
        "pods": [_pod(pod, sorted(ranks.get(pod.uid, []))) for pod in sorted(pods, key=lambda pod: pod.created)],
        "events": [
            {"time": event["time"], "kind": event["kind"], "text": event["text"]} for event in events[-_EVENTS:]
        ],
    }


def _pod(pod: Pod, ranks: list[int]) -> Json:
    return {
        "name": pod.name,
        "uid": pod.uid,
        "state": "leaving" if pod.is_leaving else pod.state,
        "ranks": ranks,
        "node": pod.node,
        "created": pod.created,
        "trouble": pod.trouble,
    }


def _gist(status: Json) -> Any:
    """What changes when something happens, and not with every step."""
    progress = ("step", "steps_per_second", "samples_per_second")
    server = {key: value for key, value in status["server"].items() if key not in progress}
    return [server, status["pods"], len(status["events"]), status["events"][-1:], status["min"], status["max"]]
