"""Which cluster and which namespace a kubeconfig names, and what is said where no API server answers."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from elastic_launch.k8s.cluster import Cluster

from . import shell
from .api_double import ApiDouble
from .conftest import make_namespace

DRY_RUN = ["submit", "digits", "--image", "digits:1", "--dry-run"]
ElasticJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dead_server() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def elastic_job(dead_server: str, tmp_path: Path) -> ElasticJob:
    """`elastic-job` with a kubeconfig of two contexts, both of a server that is not there."""
    content = {
        "clusters": [{"name": "dead", "cluster": {"server": dead_server}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [
            {"name": "mine", "context": {"cluster": "dead", "user": "me", "namespace": "team-a"}},
            {"name": "other", "context": {"cluster": "dead", "user": "me"}},
        ],
        "current-context": "mine",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))

    def run(*words: str, kubeconfig: Path = file) -> subprocess.CompletedProcess[str]:
        return shell.elastic_job(kubeconfig, *words)

    return run


def namespaces(done: subprocess.CompletedProcess[str]) -> set[str]:
    """All that the manifests name, the subjects of the role binding included."""
    assert done.returncode == 0, done.stderr
    parts: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    subjects = [subject for part in parts for subject in part.get("subjects", [])]
    assert subjects
    return {part["metadata"]["namespace"] for part in parts} | {subject["namespace"] for subject in subjects}


@pytest.mark.parametrize(
    ("flags", "namespace"),
    [([], "team-a"), (["--context", "other"], "default"), (["--context", "other", "-n", "team-b"], "team-b")],
)
def test_a_dry_run_names_the_namespace_that_a_submission_would_use(
    elastic_job: ElasticJob, flags: list[str], namespace: str
) -> None:
    assert namespaces(elastic_job(*DRY_RUN, *flags, "--", "train.py")) == {namespace}


def test_a_dry_run_needs_no_kubeconfig_but_a_context_that_is_named_must_exist(
    elastic_job: ElasticJob, tmp_path: Path
) -> None:
    none = tmp_path / "missing"
    assert namespaces(elastic_job(*DRY_RUN, "--", "train.py", kubeconfig=none)) == {"default"}
    for kubeconfig in (none, tmp_path / "kubeconfig"):
        done = elastic_job(*DRY_RUN, "--context", "third", "--", "train.py", kubeconfig=kubeconfig)
        assert done.returncode == 1 and "no cluster is known" in done.stderr, done.stderr


@pytest.mark.parametrize("command", [["list"], ["status", "digits"], ["logs", "digits"]])
def test_a_server_that_does_not_answer_is_named_with_what_to_do(
    elastic_job: ElasticJob, dead_server: str, command: list[str]
) -> None:
    done = elastic_job(*command)
    assert done.returncode == 1
    assert f"the API server {dead_server} does not answer: Connection refused." in done.stderr
    assert "KUBECONFIG or --context" in done.stderr
    assert "object at 0x" not in done.stderr and "Max retries" not in done.stderr


def test_waiting_for_a_job_says_once_that_no_server_answers_and_goes_on(
    elastic_job: ElasticJob, dead_server: str
) -> None:
    done = elastic_job("wait", "digits", "--timeout", "3")
    assert done.returncode == 3
    assert done.stderr.count(f"the API server {dead_server} does not answer: Connection refused") == 1


def cluster_at(url: str) -> Cluster:
    settings = client.Configuration()
    settings.host = url
    settings.retries = urllib3.Retry(0)
    return Cluster(client.ApiClient(settings), "n")


def test_tests_are_skipped_where_no_cluster_listens_and_fail_on_a_broken_one(dead_server: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="nothing answers"):
        make_namespace(cluster_at(dead_server))
    for status in (403, 500):
        double = ApiDouble(lambda request, status=status: request.error(status))  # type: ignore[misc]
        try:
            with pytest.raises(ApiException, match=str(status)):
                make_namespace(cluster_at(double.url))
        finally:
            double.close()
