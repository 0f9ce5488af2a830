"""k8s/manifests applied to a real cluster, and the rights that they give really tried."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elastic_launch.k8s.cluster import Cluster

from .checkout_pod import EMPTY_IMAGE, ROOT, pod_template
from .running import KubernetesJob
from .shell import elastic_job, kubeconfig_of, kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

MANIFESTS = ROOT / "k8s" / "manifests"

MAY = ["create jobs.batch", "patch jobs.batch", "delete jobs.batch", "get pods", "delete pods", "get pods/log"]
MAY += [
    "list configmaps",
    "create services",
    "create secrets",
    "create networkpolicies.networking.k8s.io",
    "create roles.rbac.authorization.k8s.io",
    "create serviceaccounts",
]
MAY_NOT = [
    "get secrets",
    "list secrets",
    "delete secrets",
    "create pods/exec",
    "patch pods",
    "delete configmaps",
    "delete services",
]
MAY_NOT += [
    "patch roles.rbac.authorization.k8s.io",
    "escalate roles.rbac.authorization.k8s.io",
    "create deployments.apps",
]
MAY_NOT += ["bind roles.rbac.authorization.k8s.io", "impersonate serviceaccounts", "list nodes", "create namespaces"]
MAY_NOT += ["create clusterroles.rbac.authorization.k8s.io", "create priorityclasses.scheduling.k8s.io"]


def can(cluster: Cluster, account: str, what: str, namespace: str = "") -> bool:
    verb, _, resource = what.partition(" ")
    user = f"system:serviceaccount:{cluster.namespace}:{account}"
    name, _, part = resource.partition("/")
    flags = [f"--subresource={part}"] if part else []
    asked = [*flags, "--as", user, "-n", namespace or cluster.namespace]
    return kubectl(cluster, "auth", "can-i", verb, name, *asked, check=False).strip().endswith("yes")


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> Cluster:
    """The namespace, as an administrator prepares it."""
    kubectl(cluster, "apply", "-k", str(MANIFESTS))
    kubectl(cluster, "apply", "-k", str(MANIFESTS / "peers"))
    return cluster


@pytest.mark.parametrize("folder", [".", "peers", "priorities", "rendezvous"])
def test_the_server_accepts_every_folder_of_the_manifests(cluster: Cluster, folder: str) -> None:
    said = kubectl(cluster, "apply", "--dry-run=server", "--validate=true", "-k", str(MANIFESTS / folder))
    assert "created" in said or "unchanged" in said or "configured" in said, said


@pytest.fixture
def priorities(cluster: Cluster) -> Iterator[None]:
    kubectl(cluster, "apply", "-k", str(MANIFESTS / "priorities"))
    yield
    kubectl(cluster, "delete", "-k", str(MANIFESTS / "priorities"))


def test_the_priority_classes_are_ordered_with_ordinary_pods_in_the_middle(cluster: Cluster, priorities: None) -> None:
    found = yaml.safe_load(kubectl(cluster, "get", "priorityclasses", "-o", "yaml"))["items"]
    values = {item["metadata"]["name"]: item["value"] for item in found}
    assert values["elastic-spare"] < 0 < values["elastic-urgent"] < values["elastic-controller"]


def test_a_submitter_may_do_what_elastic_job_does_and_no_more(prepared: Cluster) -> None:
    assert [what for what in MAY if not can(prepared, "elastic-submitter", what)] == []
    assert [what for what in MAY_NOT if can(prepared, "elastic-submitter", what)] == []
    assert not can(prepared, "elastic-submitter", "list pods", namespace="kube-system")


def test_peers_may_look_at_pods_and_nothing_else(prepared: Cluster) -> None:
    assert can(prepared, "elastic-peers", "list pods") and can(prepared, "elastic-peers", "watch pods")
    others = ["get pods/log", "delete pods", "create pods", "list configmaps", "list jobs.batch", *MAY_NOT]
    assert [what for what in others if can(prepared, "elastic-peers", what)] == []


ElasticJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def as_submitter(prepared: Cluster, tmp_path: Path) -> ElasticJob:
    """Runs `elastic-job` with nothing but a token of the submitters' account."""
    kubeconfig = kubeconfig_of(prepared, "elastic-submitter", tmp_path)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def run(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return elastic_job(kubeconfig, command, "-n", prepared.namespace, *words)

    def run_kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        whole = ["kubectl", "-n", prepared.namespace, *words]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, env=environment)

    run.kubectl = run_kubectl  # type: ignore[attr-defined]
    return run


def test_a_submitter_takes_a_job_from_its_submission_to_its_removal(
    prepared: Cluster, as_submitter: ElasticJob, tmp_path: Path
) -> None:
    job = KubernetesJob(prepared, "by-submitter", tmp_path / "journal")
    job.folder.chmod(0o777)
    templates = []
    for container, flag in (("worker", "--pod-template"), ("controller", "--controller-pod-template")):
        file = tmp_path / f"{container}.yaml"
        file.write_text(yaml.safe_dump(pod_template(container, job.folder)))
        templates += [flag, str(file)]
    script = ["tests/system/scripts/train.py", "--journal", "/journal", "--open-ended", "--pause", "0.05"]
    sizes = ["--min", "1", "--max", "2", "--image", EMPTY_IMAGE, "--image-pull-policy", "IfNotPresent"]

    def does(command: str, *words: str) -> str:
        done = as_submitter(command, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        does("submit", job.name, "--network-policy", *sizes, *templates, "--", *script)
        job.wait_for_world(2)
        assert job.name in does("list")
        assert "generation" in does("status", job.name)
        assert "connected" in does("logs", job.name, "--controller") or does("logs", job.name)
        does("drain", f"{job.name}-worker-0")
        job.wait_for_generation(2)
        does("scale", job.name, "--max", "1")
        job.wait_for_world(1)
        job.finish()
        does("wait", job.name, "--timeout", "120")
        job.assert_nothing_redone()
        does("delete", job.name)
        job.wait_for_removal()
    finally:
        job.delete()


def test_a_submitter_cannot_hand_on_rights_that_it_does_not_have(as_submitter: ElasticJob, tmp_path: Path) -> None:
    role = tmp_path / "role.yaml"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    content = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "greedy"},
        "rules": rules,
    }
    role.write_text(yaml.safe_dump(content))
    tried = as_submitter.kubectl("create", "-f", str(role))  # type: ignore[attr-defined]
    assert tried.returncode != 0 and "attempting to grant RBAC permissions not currently held" in tried.stderr
