"""Jobs from submission to their end on a real cluster, with pods that come and go."""

from __future__ import annotations

import re
import threading

import pytest

from .conftest import NewJob
from .running import KubernetesJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


def test_a_job_trains_from_its_submission_to_success(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", command=["model_zoo/digits/train.py", "--epochs", "4"])
    assert job.wait(200) == 0
    job.until(lambda: {pod.state for pod in job.pods()} == {"succeeded"}, "pods that have ended")
    assert "test accuracy 0.9" in _logs(job)
    job.wait_for_event("the job is done")
    assert job.status()["result"]["code"] == 0


def _logs(job: KubernetesJob) -> str:
    return "".join(b"".join(job.cluster.log(pod.name, "worker")).decode() for pod in job.pods())


def test_deleted_pods_leave_by_plan_and_are_replaced(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    for rank in (1, 0):
        leaver = job.pod_of_rank(rank)
        generation = job.generation()
        job.delete_pod(leaver)
        job.wait_for_generation(generation + 1)
        job.wait_for_world(2)
        assert leaver.uid not in {pod.uid for pod in job.pods() if pod.is_live}
        assert not [event for event in job.kubernetes_events() if re.search(r"has ended:.*exit code [1-9]", event)]
    job.assert_nothing_redone()
    assert {entry["cause"] for entry in job.journal("change")} <= {"start", "joined", "drained"}
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


def test_a_user_follows_a_job_and_drains_a_pod(new_job: NewJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)

    def said(command: str, *flags: str) -> str:
        capfdbinary.readouterr()
        assert job.run(command, *flags) == 0
        return capfdbinary.readouterr().out.decode()

    job.until(lambda: re.search(rf"{job.name} +running", said("list")), "the job in the list")
    status = said("status", job.name)
    assert re.search(r"generation \d+ with 2 workers", status) and f"{job.name}-worker-1" in status
    leaver, before = job.pod_of_rank(1), job.generation()
    said("drain", leaver.name)
    job.wait_for_generation(before + 1)
    job.wait_for_world(2)
    following = threading.Thread(target=job.run, args=("logs", job.name, "--follow"))
    following.start()
    job.finish()
    assert job.wait() == 0
    following.join(60)
    assert not following.is_alive()
    everything = capfdbinary.readouterr().out.decode()
    for pod in job.pods():
        assert pod.state != "succeeded" or pod.uid == leaver.uid or f"[elastic-launch {pod.name}] job" in everything
    rank = job.pod_of_rank(0)
    lines = said("logs", job.name, "--rank", "0").splitlines()
    assert lines and all(rank.name in line for line in lines if line.startswith("[elastic-launch"))
    assert "the job is done" in said("status", job.name) and "done" in said("list")
    job.assert_nothing_redone()


def test_a_pod_deleted_by_force_is_lost_and_replaced(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    lost = job.pod_of_rank(0)
    job.delete_pod(lost, force=True)
    job.wait_for_world(1)
    job.wait_for_world(2)
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)
    assert job.status()["server"]["crashes"] == 0


def test_the_controller_may_be_killed_at_any_moment(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", **STEADY)
    job.wait_for_world(2)
    for force in (False, True):
        before, generation, leaver = job.controller(), job.generation(), job.pod_of_rank(1)
        job.delete_pod(before, force)
        job.wait_for_steps(5)
        job.wait_for_controller_after(before)
        job.wait_for_steps(20)
        assert job.generation() == generation, "the ring has not changed"
        job.delete_pod(leaver)
        job.wait_for_generation(generation + 1)  # the new controller leads the change
        job.wait_for_world(2)
        job.assert_nothing_redone()
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=2)


def test_a_job_is_scaled_up_and_down(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "1", **STEADY)
    job.wait_for_world(1)
    assert job.run("scale", job.name, "--max", "3") == 0
    job.wait_for_world(3)
    assert job.run("scale", job.name, "--max", "1") == 0
    job.wait_for_world(1)
    job.until(lambda: len([pod for pod in job.pods() if not pod.has_ended]) == 1, "the others' pods gone")
    job.assert_nothing_redone()
    job.finish()
    assert job.wait() == 0
    job.assert_exact(members=1)
