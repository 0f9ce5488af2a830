"""`--ttl` on a real cluster: Kubernetes itself removes what has ended. It does so from 1.21 on; before, behind a feature gate."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kubernetes import client

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.errors import NotFound

from .conftest import NewJob, until
from .node_faults import STOP, start_what_is_stopped, stop
from .running import KubernetesJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster"), pytest.mark.soak]

HOME = Path(os.environ.get("CLUSTER_HOME", "/var/tmp/test-cluster"))
TTL = 15  # seconds


@pytest.fixture
def time_to_live(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that heeds it."""
    version = client.VersionApi(cluster.core.api_client).get_code()
    if int(version.minor.rstrip("+")) >= 21:
        yield cluster
        return
    if not STOP.exists() or os.geteuid() != 0:
        pytest.skip(
            f"Kubernetes 1.{version.minor} heeds no ttlSecondsAfterFinished unless it is told to when it starts"
        )
    with ExitStack() as stack:
        for component in ("kube-apiserver", "kube-controller-manager"):
            stack.enter_context(started_again(component, "--feature-gates=TTLAfterFinished=true"))
        until(lambda: _answers(cluster), 60)
        yield cluster


@contextmanager
def started_again(component: str, flag: str) -> Iterator[None]:
    """With a flag more; as it was before, afterwards."""
    file = HOME / "run" / f"{component}.pid"
    command = Path(f"/proc/{file.read_text().strip()}/cmdline").read_text().rstrip("\0").split("\0")
    stop(component)
    with open(HOME / "log" / f"{component}.log", "ab") as log:
        process = subprocess.Popen([*command, flag], stdout=log, stderr=log, start_new_session=True)
    file.write_text(f"{process.pid}\n")
    try:
        yield
    finally:
        process.kill()
        process.wait()
        file.unlink()
        start_what_is_stopped()


def _answers(cluster: Cluster) -> bool:
    try:
        return bool(cluster.core.list_node(_request_timeout=(2, 5)).items)
    except Exception:
        return False


def exists(job: KubernetesJob) -> bool:
    try:
        return bool(job.cluster.job(job.name))
    except NotFound:
        return False


def test_a_job_that_has_ended_is_removed_after_its_time_to_live_and_not_before(
    time_to_live: Cluster, new_job: NewJob
) -> None:
    job = new_job("--max", "2", "--ttl", str(TTL), open_ended=True, pause=0.05)
    job.wait_for_world(2)
    job.finish()
    assert job.wait() == 0
    job.until(lambda: job.cluster.job(job.name)["status"].get("completionTime"), "a complete Job")
    ended = time.monotonic()
    assert {pod.state for pod in job.pods()} == {"succeeded"}
    job.until(lambda: not exists(job), "no Job", TTL + 30)
    assert time.monotonic() - ended > TTL - 2, "the clock of Kubernetes knows whole seconds"
    job.wait_for_removal()
