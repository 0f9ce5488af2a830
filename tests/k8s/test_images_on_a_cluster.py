"""Jobs and the shared service from the project's own images, where the cluster has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from elastic_launch.k8s.cluster import Cluster, Json
from elastic_launch.rendezvous.stores.etcd.process import find_etcd

from .checkout_pod import ROOT
from .existing_pods import Existing
from .running import KubernetesJob
from .shell import kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

SERVICE, WORKER = "localhost/elastic-launch/service:test", "localhost/elastic-launch/worker:test"
HOW = (
    "no test builds it, as that takes minutes. docker/build --tag test service worker, then for each of the two IMAGEs"
    " buildah push IMAGE docker-archive:/tmp/image.tar:IMAGE && ../shared/cluster/load-image /tmp/image.tar"
    " (docker/build and ../shared/cluster/README.md say more)"
)


def need(cluster: Cluster, image: str) -> None:
    names = [
        name for node in cluster.core.list_node().items for known in node.status.images for name in known.names or []
    ]
    if image not in names:
        pytest.skip(f"the cluster does not have {image}: {HOW}")


@pytest.fixture
def digits(cluster: Cluster, tmp_path: Path) -> Iterator[KubernetesJob]:
    need(cluster, WORKER)
    job = KubernetesJob(cluster, "from-images", tmp_path / "journal")
    yield job
    job.delete()


def test_a_job_runs_from_the_images_without_root_or_a_writable_file_system(digits: KubernetesJob) -> None:
    command = ["-m", "elastic_launch.model_zoo.digits.train", "--epochs", "4"]
    from_images = ["--image", WORKER, "--image-pull-policy", "Never", "--min", "1", "--max", "2", "--memory", "1Gi"]
    assert digits.run("submit", digits.name, *from_images, words=command) == 0
    digits.until(lambda: any(pod.state == "running" for pod in digits.pods()), "a running pod")
    name = next(pod.name for pod in digits.pods() if pod.state == "running")
    looked = kubectl(
        digits.cluster, "exec", name, "--", "sh", "-c", "id -u; touch /opt/x || touch /tmp/x && echo there"
    )
    assert looked.split()[0] == "1000" and "Read-only file system" in looked and "there" in looked
    assert digits.wait(200) == 0
    digits.until(lambda: {pod.state for pod in digits.pods()} == {"succeeded"}, "pods that have ended")
    said = "".join(b"".join(digits.cluster.log(pod.name, "worker")).decode() for pod in digits.pods())
    assert "test accuracy 0.9" in said


@pytest.fixture
def replicas(cluster: Cluster, tmp_path: Path) -> Iterator[Existing]:
    """k8s/manifests/rendezvous, on an etcd in a pod, with the images' own server."""
    need(cluster, SERVICE)
    agents = Existing(cluster, tmp_path / "journal")
    anywhere = "http://0.0.0.0:2379"
    etcd = [
        find_etcd(),
        "--data-dir=/tmp/etcd",
        f"--listen-client-urls={anywhere}",
        f"--advertise-client-urls={anywhere}",
    ]
    address = agents.single("elastic-etcd", etcd, 2379)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    name, _, tag = SERVICE.rpartition(":")
    content = {
        "resources": [os.path.relpath(ROOT / "k8s" / "manifests" / "rendezvous", overlay.resolve())],
        "images": [{"name": "elastic-launch/service", "newName": name, "newTag": tag}],
        "configMapGenerator": [
            {"name": "elastic-rendezvous", "behavior": "merge", "literals": [f"ELASTIC_STORE=etcd://{address}:2379"]}
        ],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content))
    kubectl(cluster, "apply", "-k", str(overlay))
    kubectl(cluster, "apply", "-k", str(ROOT / "k8s" / "manifests" / "peers"))
    service = cluster.core.read_namespaced_service("elastic-rendezvous", cluster.namespace)
    agents.url = f"http://{service.spec.cluster_ip}:29600"
    yield agents
    agents.delete()
    kubectl(cluster, "delete", "-k", str(overlay), "--wait=false")


def test_training_goes_on_when_the_leader_of_the_shared_service_is_deleted(replicas: Existing) -> None:
    cluster = replicas.cluster
    kubectl(cluster, "rollout", "status", "deployment/elastic-rendezvous", "--timeout=55s")
    replicas.run("StatefulSet", 2)
    replicas.wait_for_world(2)
    pods = cluster.pods("app.kubernetes.io/name=elastic-rendezvous")
    assert len(pods) == 2
    leader = next(pod for pod in pods if _leads(pod))
    kubectl(cluster, "delete", "pod", leader["metadata"]["name"], "--grace-period=0", "--force")
    replicas.wait_for_steps()
    replicas.scale("StatefulSet", 3)
    replicas.wait_for_world(3)
    replicas.finish()
    replicas.until(lambda: replicas.journal("end"), "an end")
    replicas.assert_exact()


def _leads(pod: Json) -> bool:
    """Whoever does not sends one to whoever does."""
    return httpx.get(f"http://{pod['status']['podIP']}:29600/v1/jobs", trust_env=False).status_code == 200
