"""Real jobs on the cluster that KUBECONFIG names; without one, the tests that need it are skipped."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.rendezvous.stores.etcd.process import find_etcd

from .checkout_pod import EMPTY_IMAGE, pod_template
from .existing_pods import Existing
from .running import KubernetesJob

HOW = "start one with ../shared/cluster/up and export KUBECONFIG=PATH as it prints it"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A namespace of its own, gone afterwards."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip(f"KUBECONFIG is not set: {HOW}")
    found = Cluster.connect(f"elastic-{uuid.uuid4().hex[:8]}")
    make_namespace(found)
    until(lambda: _has_account(found), 30)
    yield found
    found.core.delete_namespace(found.namespace)


def make_namespace(cluster: Cluster) -> None:
    """Skips the test where nobody listens. A cluster that listens and cannot do that is broken: an error."""
    try:
        cluster.core.create_namespace({"metadata": {"name": cluster.namespace}}, _request_timeout=(2, 10))
    except urllib3.exceptions.MaxRetryError as error:
        if not isinstance(error.reason, urllib3.exceptions.ConnectTimeoutError):  # refused, no such host, no route
            raise
        pytest.skip(f"nothing answers at the address in KUBECONFIG ({error.reason}): {HOW}")


def until(condition: Callable[[], Any], limit: float) -> Any:
    """The condition's value, once it is true."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.1)
    return value


def _has_account(cluster: Cluster) -> bool:
    accounts = cluster.core.list_namespaced_service_account(cluster.namespace)
    return any(account.metadata.name == "default" for account in accounts.items)


@pytest.fixture
def etcd(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address of one in a pod."""
    pods = Existing(cluster, tmp_path / "etcd")
    anywhere = "http://0.0.0.0:2379"
    flags = ["--data-dir=/tmp/etcd", f"--listen-client-urls={anywhere}", f"--advertise-client-urls={anywhere}"]
    yield f"etcd://{pods.single(f'{pods.name}-etcd', [find_etcd(), *flags], 2379)}:2379"
    pods.delete()


NewJob = Callable[..., KubernetesJob]


@pytest.fixture
def new_job(cluster: Cluster, tmp_path: Path) -> Iterator[NewJob]:
    """Submits jobs; what is left of them is deleted after the test."""
    jobs: list[KubernetesJob] = []

    def submit(
        *flags: str, command: list[str] | None = None, restart_policy: str = "", **options: Any
    ) -> KubernetesJob:
        name = f"job-{uuid.uuid4().hex[:6]}"
        journal = tmp_path / name
        job = KubernetesJob(cluster, name, journal)
        journal.chmod(0o777)
        templates = []
        for container, flag in (("worker", "--pod-template"), ("controller", "--controller-pod-template")):
            file = tmp_path / f"{name}-{container}.yaml"
            template = pod_template(container, journal)
            if restart_policy and container == "worker":
                template["restartPolicy"] = restart_policy
            file.write_text(yaml.safe_dump(template))
            templates += [flag, str(file)]
        jobs.append(job)
        job.submit(
            "--image",
            EMPTY_IMAGE,
            "--image-pull-policy",
            "IfNotPresent",
            *templates,
            *flags,
            command=command,
            **options,
        )
        return job

    yield submit
    for job in jobs:
        job.delete()
