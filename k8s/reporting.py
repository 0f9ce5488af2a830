"""What happens to a job as Kubernetes Events on its object, for `kubectl describe job` and whoever watches events."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timezone

from .cluster import Cluster, Json
from .errors import ClusterError

logger = logging.getLogger(__name__)


class Reporter:
    """Blocks, and never raises: an event that cannot be written is in the log at least."""

    def __init__(self, cluster: Cluster, job: Json) -> None:
        self._cluster = cluster
        self._job = job

    def say(self, reason: str, message: str, warning: bool = False) -> None:
        """`reason` is one word in CamelCase."""
        logger.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        metadata = self._job["metadata"]
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": self._cluster.namespace},
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": metadata["name"],
                "namespace": self._cluster.namespace,
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message[:1000],
            "type": "Warning" if warning else "Normal",
            "source": {"component": "elastic-launch"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._cluster.create(event)
        except ClusterError as error:
            logger.warning("the event could not be written: %s", error)
