"""Nodes that are emptied for maintenance, and nodes that fall silent, on a real cluster of one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from elastic_launch.k8s.cluster import Cluster

from .conftest import NewJob
from .node_faults import STOP, without
from .running import KubernetesJob
from .shell import kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """The only one; open for pods again afterwards."""
    (found,) = cluster.core.list_node().items
    yield found.metadata.name
    kubectl(cluster, "uncordon", found.metadata.name)


def evict(job: KubernetesJob, pod: str) -> None:
    """Through the API that `kubectl drain`, autoscalers and disruption budgets go through."""
    version = "v1" if "policy/v1\n" in kubectl(job.cluster, "api-versions") else "v1beta1"
    metadata = {"name": pod, "namespace": job.cluster.namespace}
    body = {"apiVersion": f"policy/{version}", "kind": "Eviction", "metadata": metadata}
    job.cluster.core.create_namespaced_pod_eviction(pod, job.cluster.namespace, body, _preload_content=False)


def test_an_evicted_pod_leaves_by_plan_and_is_replaced(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    leaver, generation = job.pod_of_rank(1), job.generation()
    evict(job, leaver.name)
    job.wait_for_generation(generation + 1)
    job.wait_for_world(2)
    assert leaver.uid not in {pod.uid for pod in job.pods() if pod.is_live}
    job.assert_nothing_redone()
    assert {entry["cause"] for entry in job.journal("change")} <= {"start", "joined", "drained"}
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


def test_pods_of_a_drained_node_leave_by_plan_and_wait_until_there_is_a_node(new_job: NewJob, node: str) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    leaver = job.pod_of_rank(0)
    kubectl(job.cluster, "label", "pod", leaver.name, "on-the-drained-node=yes")
    kubectl(
        job.cluster,
        "drain",
        node,
        "--force",
        "--delete-emptydir-data",
        "--pod-selector=on-the-drained-node=yes",
        "--timeout=120s",
    )
    job.wait_for_world(1)
    job.wait_for_steps(20)
    job.until(lambda: any("unschedulable" in pod.trouble for pod in job.pods()), "a pod that waits for a node")
    kubectl(job.cluster, "uncordon", node)
    job.wait_for_world(2)
    job.assert_nothing_redone()
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)
    assert job.status()["server"]["crashes"] == 0


def test_a_job_all_of_whose_nodes_are_drained_goes_on_from_its_last_words(new_job: NewJob, node: str) -> None:
    job = new_job("--min", "1", "--max", "2", checkpoint="/journal/checkpoint", checkpoint_every=10**6, **STEADY)
    job.wait_for_world(2)
    workers = f"--pod-selector=elastic-launch/job={job.name},elastic-launch/role=worker"
    kubectl(job.cluster, "drain", node, "--force", "--delete-emptydir-data", workers, "--timeout=120s")
    step = job.step()
    kubectl(job.cluster, "uncordon", node)
    job.until(lambda: "restored" in {entry["cause"] for entry in job.journal("change")}, "a restored state")
    job.wait_for_world(2)
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)
    job.assert_nothing_redone()
    assert job.step() > step


@pytest.mark.soak
@pytest.mark.skipif(not STOP.exists(), reason=f"needs {STOP.name} of the test cluster, to stop its kubelet")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on the node, to stop its kubelet")
def test_pods_on_a_node_that_nobody_hears_of_are_given_up_and_replaced(new_job: NewJob) -> None:
    """All of them, as there is one node: so the job goes on from its checkpoint. Until then nothing happens to it."""
    job = new_job("--min", "1", "--max", "2", checkpoint="/journal/checkpoint", checkpoint_every=10**6, **STEADY)
    job.wait_for_world(2)
    generation, pods = job.generation(), {pod.uid for pod in job.pods()}
    with without("kubelet"):
        job.until(lambda: "Unknown" in _readiness(job), "the node to be taken for lost")
        job.wait_for_steps(20)
        assert job.generation() == generation
        job.until(lambda: all(pod.is_leaving for pod in job.pods() if pod.uid in pods), "its pods to be given up")
    job.until(lambda: "restored" in {entry["cause"] for entry in job.journal("change")}, "a restored state", 150)
    job.wait_for_world(2)
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)
    assert job.status()["server"]["crashes"] == 0


def _readiness(job: KubernetesJob) -> list[str]:
    (node,) = job.cluster.core.list_node().items
    return [condition.status for condition in node.status.conditions if condition.type == "Ready"]
