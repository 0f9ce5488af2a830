"""A job that keeps its decisions in an etcd instead of a ConfigMap, on a real cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.opening import open_etcd

from .conftest import NewJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


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


@pytest.mark.soak  # not if the controller is ended before it has seen that its job is deleted
def test_what_a_job_keeps_in_an_etcd_goes_when_it_is_deleted_before_its_end(new_job: NewJob, etcd: str) -> None:
    job = new_job("--max", "2", "--store", etcd, **STEADY)
    job.wait_for_world(2)
    assert keys(etcd)
    assert job.run("delete", job.name) == 0
    job.until(lambda: not keys(etcd), "an empty etcd")
    job.wait_for_removal()
