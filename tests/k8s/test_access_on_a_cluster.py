"""Who may talk to a job's rendezvous server, on a real cluster: whoever has the job's token, and nobody else; and who
may read its logs."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import pytest
import yaml

from .conftest import NewJob
from .running import KubernetesJob
from .shell import elastic_job, kubeconfig_of, kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200), pytest.mark.xdist_group("cluster")]


def ask(job: KubernetesJob, token: str = "") -> int:
    """The status of the answer about the job."""
    service = job.cluster.core.read_namespaced_service(job.name, job.cluster.namespace)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://{service.spec.cluster_ip}:29600/v1/jobs/{job.name}"
    return httpx.get(url, headers=headers, trust_env=False, timeout=10).status_code


def test_a_jobs_server_talks_to_those_who_have_its_token_alone(new_job: NewJob) -> None:
    job, other = (new_job("--max", "1", open_ended=True, pause=0.05) for _ in range(2))
    job.wait_for_world(1)
    token, strange = (base64.b64decode(token_of(each)).decode() for each in (job, other))
    assert token != strange
    assert [ask(job), ask(job, strange), ask(job, token)] == [401, 401, 200]
    for account in (f"{job.name}-controller", "default"):
        user = f"system:serviceaccount:{job.cluster.namespace}:{account}"
        assert "yes" not in kubectl(job.cluster, "auth", "can-i", "get", "secrets", "--as", user, check=False)
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=1)


def token_of(job: KubernetesJob) -> str:
    return str(job.cluster.core.read_namespaced_secret(f"{job.name}-token", job.cluster.namespace).data["token"])


def test_whoever_may_not_read_logs_is_told_so(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job("--max", "1", open_ended=True, pause=0.05)
    rules = [
        {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
    ]
    metadata = {"name": "onlooker"}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    kubectl(job.cluster, "apply", "-f", "-", text=yaml.safe_dump(role))
    kubectl(job.cluster, "create", "serviceaccount", "onlooker")
    account = f"--serviceaccount={job.cluster.namespace}:onlooker"
    kubectl(job.cluster, "create", "rolebinding", "onlooker", "--role=onlooker", account)
    kubeconfig = kubeconfig_of(job.cluster, "onlooker", tmp_path)
    job.wait_for_world(1)
    for follow in ([], ["--follow"]):
        done = elastic_job(kubeconfig, "logs", job.name, "-n", job.cluster.namespace, *follow)
        assert done.returncode == 1 and not done.stdout
        assert "forbidden" in done.stderr and "the right to get pods/log" in done.stderr, done.stderr
    job.finish()
    assert job.wait() == 0
