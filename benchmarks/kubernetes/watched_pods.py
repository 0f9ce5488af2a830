"""When each pod of a job was first seen, first seen running, and how it ended, in the nanoseconds of the workers' own notes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.naming import worker_selector
from elastic_launch.k8s.pods import Pod, pod_of
from elastic_launch.k8s.watching import Source, Watcher


@dataclass
class Life:
    """0 for what has not been seen."""

    created: int
    running: int = 0
    leaving: int = 0
    exit_code: int = -1


class WatchedPods:
    """The worker pods of one job, also those that are no more."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.lives: dict[str, Life] = {}
        """By the pod's id."""
        self._watcher = Watcher(
            f"pods-of-{job}",
            Source(cluster.core.list_namespaced_pod, cluster.namespace, {"label_selector": worker_selector(job)}),
            self._look,
        )

    def start(self) -> None:
        self._watcher.start()

    def stop(self) -> None:
        self._watcher.stop()

    def present(self) -> list[Pod]:
        return [pod_of(item) for item in self._watcher.objects()]

    def name_of(self, uid: str) -> str:
        return next(pod.name for pod in self.present() if pod.uid == uid)

    def _look(self) -> None:
        now = time.monotonic_ns()
        for pod in self.present():
            life = self.lives.setdefault(pod.uid, Life(now))
            if pod.state == "running" and not life.running:
                life.running = now
            if pod.is_leaving and not life.leaving:
                life.leaving = now
            if pod.has_ended:
                life.exit_code = pod.exit_code
