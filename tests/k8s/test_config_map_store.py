"""What every store promises, kept by the one in a ConfigMap: the very tests of the others, on a real API server."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.config_map_store import ConfigMapStore
from elastic_launch.k8s.errors import NotFound
from elastic_launch.rendezvous.stores.store import StoreUnavailable

from ..rendezvous import test_store as promises
from ..rendezvous.conftest import MakeStore, with_store

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

__all__ = ["with_store"]  # a fixture

globals().update({name: test for name, test in vars(promises).items() if name.startswith("test_")})


@pytest.fixture
def make_store(cluster: Cluster) -> MakeStore:
    name = f"store-{uuid.uuid4().hex[:8]}"
    cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    return lambda: ConfigMapStore(cluster, name)


def test_a_config_map_that_is_not_there_is_a_store_that_does_not_answer(cluster: Cluster) -> None:
    with pytest.raises(StoreUnavailable) as error:
        asyncio.run(ConfigMapStore(cluster, "missing").get("jobs/a"))
    assert isinstance(error.value.__cause__, NotFound)
