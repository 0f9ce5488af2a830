"""A job on the cluster for as long as a measurement takes: namespace, pods, and what its workers note."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.jobs import BenchmarkError
from benchmarks.settings import scratch_folder
from benchmarks.timeline import Recordings
from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.errors import NotFound
from elastic_launch.k8s.main import main as elastic_job
from tests.k8s.checkout_pod import EMPTY_IMAGE, pod_template

from .settings import Settings
from .watched_pods import WatchedPods


@contextlib.contextmanager
def namespace() -> Iterator[Cluster]:
    """One of its own, gone afterwards."""
    cluster = Cluster.connect(f"benchmark-{uuid.uuid4().hex[:6]}")
    cluster.core.create_namespace({"metadata": {"name": cluster.namespace}})
    try:
        yield cluster
    finally:
        cluster.core.delete_namespace(cluster.namespace)


class Job:
    """`pods` are its worker pods, `recordings` what their workers note."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self.cluster = cluster
        self.name = name
        self.pods = WatchedPods(cluster, name)
        self.recordings = Recordings(folder)

    def kubectl(self, *arguments: str) -> None:
        command = ["kubectl", "-n", self.cluster.namespace, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise BenchmarkError(f"{' '.join(command)}: {done.stderr}")


@contextlib.contextmanager
def running(cluster: Cluster, settings: Settings, *flags: str) -> Iterator[Job]:
    name = f"job-{uuid.uuid4().hex[:6]}"
    with scratch_folder() as scratch:
        folder = Path(scratch) / "journal"
        folder.mkdir()
        folder.parent.chmod(0o755)
        folder.chmod(0o777)
        templates = []
        for container, flag in (("worker", "--pod-template"), ("controller", "--controller-pod-template")):
            file = Path(scratch) / f"{container}.yaml"
            file.write_text(yaml.safe_dump(pod_template(container, folder)))
            templates += [flag, str(file)]
        sizes = ["--min", "1", "--max", str(settings.workers)]
        image = ["--image", EMPTY_IMAGE, "--image-pull-policy", "IfNotPresent"]
        script = ["-m", "benchmarks.kubernetes.workload", *settings.workload_flags()]
        job = Job(cluster, name, folder)
        submit = ["submit", name, "-n", cluster.namespace, *sizes, *image, *templates, *flags, "--", *script]
        if elastic_job(submit) != 0:
            raise BenchmarkError("the job could not be submitted")
        job.pods.start()
        try:
            yield job
        finally:
            job.pods.stop()
            with contextlib.suppress(NotFound):
                cluster.delete_job(name)
