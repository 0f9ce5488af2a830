"""Looking on while a job runs: `elastic-job status --watch` on a terminal, `logs` of a job that has yet to start."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .checkout_pod import ROOT
from .conftest import NewJob
from .running import LIMIT, KubernetesJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


class Watch:
    """`elastic-job status --watch` on a terminal of its own."""

    def __init__(self, job: KubernetesJob) -> None:
        self._terminal, theirs = os.openpty()
        command = ["-m", "elastic_launch.k8s.main", "status", job.name, "--watch", "-n", job.cluster.namespace]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "60"}
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment
        )
        os.close(theirs)
        self._shown = ""

    def until(self, pattern: str) -> None:
        """Looks at what is shown from the last match on."""
        end = time.monotonic() + LIMIT
        while not (found := re.search(pattern, self._shown)):
            assert time.monotonic() < end, f"{pattern!r} is not shown: {self._shown[-3000:]}"
            if select.select([self._terminal], [], [], 0.5)[0]:
                try:
                    self._shown += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # the other side has closed it
                    assert re.search(pattern, self._shown), self._shown[-3000:]
        self._shown = self._shown[found.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def watching(job: KubernetesJob) -> Iterator[Watch]:
    watch = Watch(job)
    try:
        yield watch
    finally:
        watch.close()


def test_the_status_is_shown_anew_until_the_job_is_over(new_job: NewJob) -> None:
    job = new_job("--max", "1", **STEADY)
    with watching(job) as watch:
        watch.until(rf"{job.name}: running")
        watch.until("generation 1 with 1 workers")
        assert job.run("scale", job.name, "--max", "2") == 0
        watch.until("generation 2 with 2 workers")
        watch.until(f"{job.name}-worker-1 +running")
        job.finish()
        watch.until(f"{job.name}: done")
        assert watch.process.wait(60) == 0


def test_logs_say_what_a_job_waits_for_and_go_on_when_its_pods_come(
    new_job: NewJob, capfd: pytest.CaptureFixture[str]
) -> None:
    job = new_job("--max", "1", **STEADY)
    following = threading.Thread(target=job.run, args=("logs", job.name, "--follow"))
    following.start()
    job.wait_for_world(1)
    job.finish()
    assert job.wait() == 0
    following.join(60)
    assert not following.is_alive()
    said = capfd.readouterr()
    assert f"job {job.name} has no workers yet" in said.err or "nothing of job" in said.err, said.err
    assert f"[elastic-launch {job.name}-worker-0] generation 1" in said.out


def test_logs_of_a_job_that_does_not_fit_say_so_and_end(new_job: NewJob, capfd: pytest.CaptureFixture[str]) -> None:
    job = new_job("--max", "1", "--cpu", "900", **STEADY)
    job.until(lambda: any("Insufficient cpu" in pod.trouble for pod in job.pods()), "a pod without a place")
    assert job.run("logs", job.name) == 1
    said = capfd.readouterr()
    assert f"nothing of job {job.name} has been started yet" in said.err and "Insufficient cpu" in said.err
    assert job.run("logs", job.name, "--rank", "0") == 1
    assert "has rank 0 yet" in capfd.readouterr().err
