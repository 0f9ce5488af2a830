"""The cluster by `kubectl` and `elastic-job`, as people use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from elastic_launch.k8s.cluster import Cluster

from .checkout_pod import ROOT


def kubectl(cluster: Cluster, *arguments: str, text: str | None = None, check: bool = True) -> str:
    """What it prints, errors included, in the cluster's namespace. `text` is its standard input."""
    done = subprocess.run(
        ["kubectl", "-n", cluster.namespace, *arguments], input=text, capture_output=True, text=True, timeout=150
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def kubeconfig_of(cluster: Cluster, account: str, folder: Path) -> Path:
    """One with nothing but a token of this service account."""
    made = cluster.core.create_namespaced_service_account_token(
        account, cluster.namespace, {"spec": {"expirationSeconds": 3600}}
    )
    settings = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for user in settings["users"]:
        user["user"] = {"token": made.status.token}
    file = folder / f"kubeconfig-{account}"
    file.write_text(yaml.safe_dump(settings))
    return file


def elastic_job(kubeconfig: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the client library reads KUBECONFIG only once."""
    whole = [sys.executable, "-m", "elastic_launch.k8s.main", command, *words]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)}
    return subprocess.run(whole, capture_output=True, text=True, timeout=200, env=environment, cwd=ROOT)
