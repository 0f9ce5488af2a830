"""Two jobs on one node that has no room for both: real priority classes, the real scheduler."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client

from elastic_launch.k8s.cluster import Cluster

from ..system.conftest import Undisturbed, undisturbed
from .conftest import NewJob

__all__ = ["undisturbed"]  # a fixture

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]


@pytest.fixture
def priorities(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The names of a low and a high one."""
    scheduling = client.SchedulingV1Api(cluster.core.api_client)
    names = [f"{word}-{uuid.uuid4().hex[:6]}" for word in ("low", "high")]
    for value, name in zip((1000, 2000), names, strict=True):
        scheduling.create_priority_class({"metadata": {"name": name}, "value": value})
    yield names[0], names[1]
    for name in names:
        scheduling.delete_priority_class(name)


def test_a_job_shrinks_for_a_more_important_one_and_grows_back(
    new_job: NewJob, priorities: tuple[str, str], undisturbed: Undisturbed
) -> None:
    low, high = priorities
    job = new_job(*("--min", "1", "--max", "2", "--cpu", "800m", "--priority-class", low), open_ended=True, pause=0.05)
    job.wait_for_world(2)
    other = new_job(
        *("--min", "1", "--max", "1", "--cpu", "800m", "--priority-class", high),
        command=["model_zoo/digits/train.py", "--epochs", "4"],
    )
    job.wait_for_world(1)
    assert other.wait() == 0
    log = b"".join(b"".join(other.cluster.log(pod.name, "worker")) for pod in other.pods())
    assert b"test accuracy 0.9" in log
    job.wait_for_world(2)
    job.assert_nothing_redone()
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)
    job.assert_follows(undisturbed("--epochs", str(job.journal("end")[0]["epochs"])))
    assert job.status()["server"]["crashes"] == 0
