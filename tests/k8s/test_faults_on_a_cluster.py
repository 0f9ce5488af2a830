"""What goes wrong in a cluster without anybody asking for it: memory, networks, the API server."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest

from .conftest import NewJob, until
from .node_faults import STOP, agent_process, without
from .running import KubernetesJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


def test_a_container_that_runs_out_of_memory_costs_one_crash(new_job: NewJob) -> None:
    script = ["tests/k8s/scripts/hungry.py", "--journal", "/journal", "--open-ended", "--pause", "0.05"]
    known = ["--env", "ELASTIC_ON_CHANGE=in-process"]  # the launcher does not see through runpy
    job = new_job("--min", "1", "--max", "2", "--memory", "700Mi", *known, command=script)
    job.wait_for_world(2)
    generation = job.generation()
    (job.folder / "eat").touch()
    job.wait_for_generation(generation + 1)
    job.wait_for_world(2)

    def is_told() -> bool:
        told = [event["text"] for event in job.status()["events"]] + [pod.trouble for pod in job.pods()]
        return any("memory" in text or "OOMKilled" in text for text in told)

    job.until(is_told, "a status that tells of the memory")
    job.wait_for_event("memory|OOMKilled")
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on the node, to kill a container's process")
def test_a_container_started_again_in_the_same_pod_is_a_new_member(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", restart_policy="OnFailure", **STEADY)
    job.wait_for_world(2)
    pod, generation = job.pod_of_rank(1), job.generation()
    agent_process(pod.uid).kill()
    job.wait_for_generation(generation + 1)
    job.wait_for_world(2)

    def has_started_again() -> bool:  # the kubelet tells the API of it behind the agent's first word
        again = next(known for known in job.pods() if known.uid == pod.uid)
        return again.starts == 1 and again.is_live

    job.until(has_started_again, f"{pod.name} to be started once more")
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


def veth_of(address: str) -> str:
    """The node's end of the cable of the pod with this address."""
    neighbour = subprocess.run(["ip", "neigh", "show", address, "dev", "cni0"], capture_output=True, text=True).stdout
    found = re.search(r"lladdr (\S+)", neighbour)
    assert found, f"nobody has {address}: {neighbour}"
    table = subprocess.run(["bridge", "fdb", "show", "br", "cni0"], capture_output=True, text=True).stdout
    return re.search(rf"^{found.group(1)} dev (\S+)", table, re.MULTILINE).group(1)  # type: ignore[union-attr]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on the node, to cut a pod's cable")
def test_a_pod_whose_network_is_cut_is_lost_and_comes_back(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    cut = job.pod_of_rank(1)
    veth = veth_of(job.cluster.pod(cut.name)["status"]["podIP"])
    subprocess.run(["ip", "link", "set", veth, "down"], check=True)
    try:
        job.wait_for_world(1, 30)
        job.wait_for_steps(20)
        job.wait_for_event("HostSilent")
    finally:
        subprocess.run(["ip", "link", "set", veth, "up"], check=True)
    job.wait_for_world(2)
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


@pytest.mark.skipif(not STOP.exists(), reason=f"needs {STOP} of the test cluster, to stop its API server")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on the node, to stop its API server")
def test_training_goes_on_while_the_api_server_restarts_and_what_changed_meanwhile_is_picked_up(
    new_job: NewJob,
) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    generation, controller, lost = job.generation(), job.controller(), job.pod_of_rank(1)
    with without("kube-apiserver"):
        steps_go_on(job)
        assert job.generation() == generation
        agent_process(lost.uid).kill()
    job.wait_for_generation(generation + 1)
    job.wait_for_world(2)
    assert lost.uid not in {pod.uid for pod in job.pods() if pod.is_live}
    assert job.controller().uid == controller.uid
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


@pytest.mark.soak
@pytest.mark.skipif(not STOP.exists(), reason=f"needs {STOP} of the test cluster, to stop its API server")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on the node, to stop its API server")
def test_a_ring_shrinks_while_the_api_server_is_gone_and_grows_back_afterwards(new_job: NewJob, etcd: str) -> None:
    """With its decisions in an etcd, a job needs the API server for new pods alone."""
    job = new_job("--min", "1", "--max", "2", "--store", etcd, **STEADY)
    job.wait_for_world(2)
    generation, controller, lost = job.generation(), job.controller(), job.pod_of_rank(1)
    with without("kube-apiserver"):
        began = time.monotonic()
        while time.monotonic() < began + 20:
            steps_go_on(job)
        assert job.generation() == generation
        agent_process(lost.uid).kill()
        until(lambda: job.world_size() == 1, 30)
        while time.monotonic() < began + 60:
            steps_go_on(job)
        assert job.world_size() == 1
    job.wait_for_world(2)
    assert lost.uid not in {pod.uid for pod in job.pods() if pod.is_live}
    assert job.controller().uid == controller.uid
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


def steps_go_on(job: KubernetesJob) -> None:
    """Without a look at the cluster."""
    step = job.step()
    until(lambda: job.step() >= step + 10, 40)
