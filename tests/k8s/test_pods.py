"""How a pod of the API is taken."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launch.k8s.pods import number_of, pod_of


def item(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a-worker-0", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"name": "worker", "state": {"waiting": {"reason": reason, "message": message}}}


def terminated(code: int, reason: str) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z"}
    return {"name": "worker", "state": {"terminated": end}}


def test_a_pod_that_does_not_fit_tells_the_schedulers_reason() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }
    pod = pod_of(item({"phase": "Pending", "conditions": [condition]}))
    assert pod.trouble == "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    assert pod.is_live and not pod.by_force


def test_an_image_that_cannot_be_pulled_is_told() -> None:
    pod = pod_of(item({"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff", "no such image")]}))
    assert pod.trouble == "ImagePullBackOff: no such image"
    assert pod_of(item({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]})).trouble == ""


def test_a_container_killed_for_memory_is_a_failure_of_its_own() -> None:
    pod = pod_of(item({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}))
    assert (pod.exit_code, pod.trouble, pod.by_force) == (137, "OOMKilled, exit code 137", False)
    assert pod.ended == pod.created + 60 and not pod.is_live


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
        {"phase": "Failed", "reason": "NodeLost"},
        {"phase": "Failed"},
        {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ],
)
def test_what_came_from_outside_is_no_failure(status: dict[str, Any]) -> None:
    assert pod_of(item(status)).by_force


def test_a_deleted_pod_leaves_and_its_failure_is_none() -> None:
    status = {"phase": "Failed", "containerStatuses": [terminated(137, "Error")]}
    pod = pod_of(item(status, deletionTimestamp="2026-01-01T00:02:00Z"))
    assert pod.is_leaving and pod.by_force and pod.leaving_until == pod.created + 120


def test_the_number_of_a_pod_is_in_its_name() -> None:
    assert number_of("a", "a-worker-12") == 12
    assert number_of("a", "a-worker-x") == number_of("a", "b-worker-1") == number_of("a", "a-worker") == -1
