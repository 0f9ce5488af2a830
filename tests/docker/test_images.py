"""The images, built by a real builder from this checkout."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim"
ENVIRONMENT = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}


def buildah(*arguments: str, limit: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["buildah", *arguments], capture_output=True, text=True, timeout=limit, env=ENVIRONMENT, cwd=ROOT
    )


def reason_not_to_build() -> str:
    if shutil.which("buildah") is None:
        return "buildah is not installed"
    if buildah("images", "-q", BASE).returncode:
        return f"the base image {BASE} is not here: buildah pull {BASE}"
    return ""


WITHOUT = reason_not_to_build()
pytestmark = [pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT), pytest.mark.timeout(600)]


@contextlib.contextmanager
def container(image: str) -> Iterator[str]:
    name = buildah("from", f"localhost/elastic-launch/{image}:test").stdout.strip()
    try:
        yield name
    finally:
        buildah("rm", name)


def where_packages_come_from() -> list[str]:
    """What pip uses on this machine, for the builder to use as well: authorities, its configuration, local folders."""
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    named = re.findall(r"(?:file://)?(/[^\s'\"]+)", configured)
    places = ["/etc/ssl/certs", "/etc/pip.conf", *sorted({place.removesuffix("/simple") for place in named})]
    return [place for place in places if Path(place).exists() and not place.startswith("/etc/ssl/certs/")]


def build(image: str, *arguments: str, limit: float = 580) -> None:
    """With the local folders of wheels that pip uses here."""
    places = [place for place in where_packages_come_from() if any(Path(place).glob("*.whl"))]
    arguments += ("--build-arg", f"PIP_FIND_LINKS={' '.join(places)}") if places else ()
    mounts = [flag for place in where_packages_come_from() for flag in ("-v", f"{place}:{place}:ro")]
    done = subprocess.run(
        [ROOT / "docker" / "build", "--tag", "test", image, "--", "--network", "host", *mounts, *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_service_runs_as_nobody_in_particular_and_has_no_torch() -> None:
    build("service")
    with container("service") as name:
        assert buildah("run", name, "--", "id", "-u").stdout.strip() == "10001"
        assert "--store" in buildah("run", name, "--", "elastic-rendezvous", "--help").stdout
        torch = buildah("run", name, "--", "python3", "-c", "import torch")
        assert torch.returncode != 0 and "No module named 'torch'" in torch.stderr
        store = buildah("run", name, "--", "python3", "-c", "import grpc, aetcd; print('ready')")
        assert store.stdout.strip() == "ready", store.stderr
        for command in (
            "-m elastic_launch.k8s.controller",
            "-m elastic_launch.k8s.peers",
            "-m elastic_launch.k8s.main",
        ):
            done = buildah("run", name, "--", "python3", *command.split(), "--help")
            assert done.returncode == 0 and "usage: elastic-" in done.stdout, done.stderr
        entry = buildah("inspect", "--format", "{{.OCIv1.Config.Entrypoint}}", name).stdout
        assert re.search("elastic-rendezvous", entry)


@pytest.mark.soak  # five minutes
@pytest.mark.timeout(1500)
def test_a_worker_has_torch_and_all_that_its_job_needs() -> None:
    torch = version("torch")
    build("worker", "--build-arg", f"TORCH=torch=={torch}", limit=1400)
    with container("worker") as name:
        assert buildah("run", name, "--", "id", "-u").stdout.strip() == "10001"
        imports = "import torch, sklearn, kubernetes, elastic_launch.model_zoo.digits.train; print(torch.__version__)"
        done = buildah("run", name, "--", "python3", "-c", imports)
        assert done.stdout.strip() == torch, done.stderr
        assert "--watch-pods" in buildah("run", name, "--", "elastic-launch", "--help").stdout
