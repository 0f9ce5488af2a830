"""A workload of agents in pods that no controller of ours looks after, as a test makes and disturbs it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.merging import merge

from ..system.journals import JournalFolder
from .checkout_pod import EMPTY_IMAGE, pod_template
from .running import LIMIT
from .shell import kubectl

Json = dict[str, Any]


class Existing(JournalFolder):
    """A rendezvous server in a pod, and a workload of agents that no controller of ours looks after."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(folder)
        folder.chmod(0o777)
        self.cluster = cluster
        self.name = f"own-{uuid.uuid4().hex[:6]}"
        self.labels = {"app": self.name}
        self.url = ""
        self._made: list[tuple[str, str]] = []

    # --- making ---

    def serve(self) -> None:
        """With a server of its own."""
        command = ["python3", "-m", "elastic_launch.rendezvous.main", "--host", "0.0.0.0"]
        self.url = f"http://{self.single(f'{self.name}-server', command, 29600)}:29600"

    def single(self, name: str, command: list[str], port: int) -> str:
        """One pod behind a Service of its own, whose address is returned."""
        pod = self._pod({"server": name}, command, "default")
        metadata = {"name": name, **pod["metadata"]}
        self._create({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": pod["spec"]})
        spec = {"selector": {"server": name}, "ports": [{"port": port}]}
        self._create({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
        return str(self.cluster.core.read_namespaced_service(name, self.cluster.namespace).spec.cluster_ip)

    def run(self, kind: str, replicas: int, watch: bool = True, env: list[Json] | None = None) -> None:
        """A Deployment, StatefulSet or Job. Its pods' first process is a shell, which keeps SIGTERM to itself."""
        flags = [f"--watch-pods app={self.name}"] if watch else []
        launch = " ".join(
            [
                *("python3 -m elastic_launch.launcher.main --rendezvous", self.url, "--job", self.name),
                *("--min 1 --max 4 --nproc-per-node 1", *flags),
                "tests/system/scripts/train.py --journal /journal --open-ended --pause 0.05",
            ]
        )
        pod = self._pod(self.labels, ["/bin/sh", "-c", f"{launch}; sleep 2"], "elastic-peers", env)
        if kind == "Job":
            pod["spec"]["restartPolicy"] = "Never"
            jobs: Json = {"parallelism": replicas, "completions": 100, "template": pod}  # one for each pod that leaves
            self._create({"kind": kind, "apiVersion": "batch/v1", "metadata": {"name": self.name}, "spec": jobs})
            return
        spec: Json = {"replicas": replicas, "selector": {"matchLabels": self.labels}, "template": pod}
        if kind == "StatefulSet":
            spec |= {"serviceName": self.name, "podManagementPolicy": "Parallel"}
        self._create({"kind": kind, "apiVersion": "apps/v1", "metadata": {"name": self.name}, "spec": spec})

    def scale(self, kind: str, replicas: int) -> None:
        field = "parallelism" if kind == "Job" else "replicas"
        patch = json.dumps({"spec": {field: replicas}})
        kubectl(self.cluster, "patch", f"{kind.lower()}/{self.name}", "--patch", patch)

    def delete(self) -> None:
        for kind, name in reversed(self._made):
            kubectl(self.cluster, "delete", kind, name, "--wait=false", "--grace-period=1", "--ignore-not-found")

    def _create(self, item: Json) -> None:
        self._made.append((item["kind"], item["metadata"]["name"]))
        kubectl(self.cluster, "apply", "-f", "-", text=json.dumps(item))

    def _pod(self, labels: dict[str, str], command: list[str], account: str, env: list[Json] | None = None) -> Json:
        container = {"name": "main", "image": EMPTY_IMAGE, "imagePullPolicy": "IfNotPresent", "command": command}
        spec = {
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 20,
            "securityContext": {"runAsUser": 1000, "runAsNonRoot": True},
            "containers": [{**container, "env": [{"name": "HOME", "value": "/tmp"}, *(env or [])]}],
        }
        return {"metadata": {"labels": labels}, "spec": merge(spec, pod_template("main", self.folder))}

    # --- looking ---

    def pods(self) -> list[Json]:
        return self.cluster.pods(f"app={self.name}")

    def log(self) -> str:
        """Of all of them and the server."""
        names = [pod["metadata"]["name"] for pod in self.pods()] + [f"{self.name}-server"]
        return "\n".join(kubectl(self.cluster, "logs", name, "--tail=60", check=False) for name in names)

    def until(self, condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
        end = time.monotonic() + limit
        while not (value := condition()):
            assert time.monotonic() < end, f"waited {limit:g} s for {what}\n{self.log()}"
            time.sleep(0.1)
        return value

    def wait_for_world(self, size: int) -> None:
        self.until(lambda: self.world_size() == size, f"{size} workers, there are {self.world_size()}")

    def wait_for_steps(self, count: int = 10) -> None:
        step = self.step()
        self.until(lambda: self.step() >= step + count, f"{count} steps after {step}")

    def causes(self) -> list[str]:
        return [entry["cause"] for entry in self.journal("change")]
