"""`elastic-launch --watch-pods` in pods that something else has created, on a real cluster."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.merging import merge

from ..system.journals import JournalFolder
from .checkout_pod import EMPTY_IMAGE, ROOT, pod_template
from .running import LIMIT
from .shell import kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

PEERS = ROOT / "k8s" / "manifests" / "peers"
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
        """A Deployment or a StatefulSet. Its pods' first process is a shell, which keeps SIGTERM to itself."""
        flags = [f"--watch-pods app={self.name}"] if watch else []
        launch = " ".join(
            [
                *("python3 -m elastic_launch.launcher.main --rendezvous", self.url, "--job", self.name),
                *("--min 1 --max 4 --nproc-per-node 1", *flags),
                "tests/system/scripts/train.py --journal /journal --open-ended --pause 0.05",
            ]
        )
        pod = self._pod(self.labels, ["/bin/sh", "-c", f"{launch}; sleep 2"], "elastic-peers", env)
        spec: Json = {"replicas": replicas, "selector": {"matchLabels": self.labels}, "template": pod}
        if kind == "StatefulSet":
            spec |= {"serviceName": self.name, "podManagementPolicy": "Parallel"}
        self._create({"kind": kind, "apiVersion": "apps/v1", "metadata": {"name": self.name}, "spec": spec})

    def scale(self, kind: str, replicas: int) -> None:
        kubectl(self.cluster, "scale", f"{kind.lower()}/{self.name}", f"--replicas={replicas}")

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


@pytest.fixture
def existing(cluster: Cluster, tmp_path: Path) -> Iterator[Existing]:
    kubectl(cluster, "apply", "-k", str(PEERS))
    found = Existing(cluster, tmp_path / "journal")
    found.serve()
    yield found
    found.delete()


def test_a_deployments_pods_are_drained_when_they_are_deleted_though_no_signal_reaches_them(existing: Existing) -> None:
    existing.run("Deployment", 3)
    existing.wait_for_world(3)
    existing.wait_for_steps()
    leaver = existing.pods()[0]["metadata"]["name"]
    kubectl(existing.cluster, "delete", "pod", leaver, "--wait=false")
    existing.until(lambda: "drained" in existing.causes(), "a drain")
    existing.wait_for_world(3)  # the Deployment has put another one in its place
    existing.scale("Deployment", 1)
    existing.wait_for_world(1)
    existing.wait_for_steps()
    existing.assert_nothing_redone()
    assert set(existing.causes()) <= {"start", "joined", "drained"}
    existing.finish()
    existing.until(lambda: existing.journal("end"), "an end")
    existing.assert_exact()


def test_a_statefulsets_pod_that_is_removed_by_force_is_replaced_by_one_of_its_name(existing: Existing) -> None:
    existing.run("StatefulSet", 2, env=[_field("ELASTIC_POD_UID", "metadata.uid")])
    existing.wait_for_world(2)
    existing.wait_for_steps()
    kubectl(existing.cluster, "delete", "pod", f"{existing.name}-1", "--grace-period=0", "--force")
    existing.until(lambda: existing.causes()[-1] not in ("start", "drained"), "a loss")
    existing.wait_for_world(2)
    existing.wait_for_steps()
    kubectl(existing.cluster, "delete", "pod", f"{existing.name}-1", "--wait=false")
    existing.until(lambda: "drained" in existing.causes(), "a drain of the second one of that name")
    existing.wait_for_world(2)
    existing.finish()
    existing.until(lambda: existing.journal("end"), "an end")
    existing.assert_exact()


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
