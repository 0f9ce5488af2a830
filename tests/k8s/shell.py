"""The cluster by `kubectl`, as people use it."""

from __future__ import annotations

import subprocess

from elastic_launch.k8s.cluster import Cluster


def kubectl(cluster: Cluster, *arguments: str, text: str | None = None, check: bool = True) -> str:
    """What it prints, errors included, in the cluster's namespace. `text` is its standard input."""
    done = subprocess.run(
        ["kubectl", "-n", cluster.namespace, *arguments], input=text, capture_output=True, text=True, timeout=60
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr
