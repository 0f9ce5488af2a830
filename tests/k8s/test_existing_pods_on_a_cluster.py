"""`elastic-launch --watch-pods` in pods that something else has created, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launch.k8s.cluster import Cluster

from .checkout_pod import ROOT
from .existing_pods import Existing, Json
from .shell import kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

PEERS = ROOT / "k8s" / "manifests" / "peers"


@pytest.fixture
def existing(cluster: Cluster, tmp_path: Path) -> Iterator[Existing]:
    kubectl(cluster, "apply", "-k", str(PEERS))
    found = Existing(cluster, tmp_path / "journal")
    found.serve()
    yield found
    found.delete()


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_pods_are_drained_when_they_are_deleted_though_no_signal_reaches_them(existing: Existing, kind: str) -> None:
    existing.run(kind, 3)
    existing.wait_for_world(3)
    existing.wait_for_steps()
    leaver = existing.pods()[0]["metadata"]["name"]
    kubectl(existing.cluster, "delete", "pod", leaver, "--wait=false")
    existing.until(lambda: "drained" in existing.causes(), "a drain")
    existing.wait_for_world(3)  # another one is in its place
    existing.scale(kind, 1)
    existing.wait_for_world(1)
    existing.wait_for_steps()
    existing.assert_nothing_redone()
    assert set(existing.causes()) <= {"start", "joined", "drained"}
    existing.finish()
    existing.until(lambda: existing.journal("end"), "an end")
    existing.assert_exact()


@pytest.mark.soak
def test_a_statefulsets_pod_that_is_removed_by_force_is_replaced_by_one_of_its_name(existing: Existing) -> None:
    existing.run("StatefulSet", 2, env=[_field("ELASTIC_POD_UID", "metadata.uid")])
    existing.wait_for_world(2)
    existing.wait_for_steps()
    kubectl(existing.cluster, "delete", "pod", f"{existing.name}-1", "--grace-period=0", "--force")
    existing.until(lambda: existing.causes()[-1] not in ("start", "drained"), "a loss")
    existing.wait_for_world(2)
    existing.wait_for_steps()
    kubectl(existing.cluster, "delete", "pod", f"{existing.name}-1", "--wait=false")
    existing.until(lambda: "drained" in existing.causes(), "a drain of the second one of that name")
    existing.wait_for_world(2)
    existing.finish()
    existing.until(lambda: existing.journal("end"), "an end")
    existing.assert_exact()


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
