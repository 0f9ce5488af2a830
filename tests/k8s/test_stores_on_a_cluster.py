"""A job that keeps its decisions in an etcd instead of a ConfigMap, on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.process import find_etcd
from elastic_launch.rendezvous.stores.opening import open_etcd

from .conftest import NewJob
from .test_existing_pods_on_a_cluster import Existing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


@pytest.fixture
def etcd(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address of one in a pod."""
    pods = Existing(cluster, tmp_path / "etcd")
    anywhere = "http://0.0.0.0:2379"
    flags = ["--data-dir=/tmp/etcd", f"--listen-client-urls={anywhere}", f"--advertise-client-urls={anywhere}"]
    yield f"etcd://{pods.single(f'{pods.name}-etcd', [find_etcd(), *flags], 2379)}:2379"
    pods.delete()


def keys(etcd: str) -> list[str]:
    async def read() -> list[str]:
        store = open_etcd(replace(EtcdAddress.parse(etcd), prefix="/"))
        try:
            return [*await store.read("")]
        finally:
            await store.close()

    return asyncio.run(asyncio.wait_for(read(), 10))


def test_what_a_job_keeps_in_an_etcd_goes_with_its_end(new_job: NewJob, etcd: str) -> None:
    job = new_job("--max", "1", "--store", etcd, **STEADY)
    job.wait_for_world(1)
    uid = job.cluster.job(job.name)["metadata"]["uid"]
    assert any(uid in key for key in keys(etcd))
    job.finish()
    assert job.wait() == 0
    job.until(lambda: not keys(etcd), "an empty etcd")
    job.assert_exact(members=1)


def test_what_a_job_keeps_in_an_etcd_goes_when_it_is_deleted_before_its_end(new_job: NewJob, etcd: str) -> None:
    job = new_job("--max", "2", "--store", etcd, **STEADY)
    job.wait_for_world(2)
    assert keys(etcd)
    assert job.run("delete", job.name) == 0
    job.until(lambda: not keys(etcd), "an empty etcd")
    job.until(lambda: not job.pods(), "no pods", 30)
