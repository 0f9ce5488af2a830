"""How jobs end on a real cluster, and what is told of pods that do not run."""

from __future__ import annotations

import pytest

from elastic_launch.k8s.errors import NotStarted

from .checkout_pod import EMPTY_IMAGE
from .conftest import NewJob
from .running import KubernetesJob

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]

STEADY = {"open_ended": True, "pause": 0.05}


def conditions(job: KubernetesJob) -> list[tuple[str, str]]:
    """Of the Kubernetes Job that stand."""
    found = job.cluster.job(job.name)["status"].get("conditions") or []
    return [(known["type"], known.get("reason", "")) for known in found if known["status"] == "True"]


def test_a_failed_job_has_the_scripts_exit_code_and_its_last_words(
    new_job: NewJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job("--max", "1", "--backoff-limit", "0", exit_at="3:0:7")
    assert job.wait() == 7
    assert "exited with code 7" in capsys.readouterr().err
    job.until(lambda: conditions(job) == [("Failed", "BackoffLimitExceeded")], "a failed Kubernetes Job")
    assert [pod.exit_code for pod in job.pods()] == [7]
    job.wait_for_event("Failed: exit code 7")
    job.wait_for_event("WorkerCrashed: .*exited with code 7")
    assert job.run("status", job.name) == 0
    assert "exit code 7" in capsys.readouterr().out
    assert job.run("logs", job.name, "--follow") == 0, "the exit code of logs tells of the logs"


def test_a_job_that_takes_too_long_fails_with_its_deadline(new_job: NewJob) -> None:
    job = new_job("--max", "1", "--active-deadline", "20", **STEADY)
    job.wait_for_world(1)
    assert job.wait() == 124
    job.until(lambda: conditions(job) == [("Failed", "DeadlineExceeded")], "a failed Kubernetes Job")
    job.until(lambda: all(pod.has_ended for pod in job.pods()), "no pods left that run")


def test_pods_that_do_not_fit_are_told_and_the_job_runs_without_them(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "3", "--cpu", "900m", **STEADY)
    job.wait_for_world(2)
    job.wait_for_event("PodPending")
    job.until(
        lambda: any("Insufficient cpu" in pod["trouble"] for pod in job.status()["pods"]), "the scheduler's reason"
    )
    job.finish()
    assert job.wait() == 0
    job.until(lambda: all(pod.has_ended for pod in job.pods()), "no pods left that wait")
    job.assert_exact()


def test_an_image_that_cannot_be_pulled_is_told(new_job: NewJob) -> None:
    job = new_job("--max", "1", "--image", "registry.invalid/none:1", "--controller-image", EMPTY_IMAGE, **STEADY)
    job.until(lambda: any("Image" in pod["trouble"] for pod in job.status().get("pods", [])), "the image's trouble")
    with pytest.raises(NotStarted):
        b"".join(job.cluster.log(job.pods()[0].name, "worker"))
    job.wait_for_event("PodPending")


def test_pods_that_fail_by_themselves_use_up_the_backoff_limit(new_job: NewJob) -> None:
    job = new_job("--max", "1", "--backoff-limit", "1", command=["missing.py"])
    assert job.wait() == 2
    assert len([pod for pod in job.pods() if pod.state == "failed"]) == 2
    assert "BackoffLimitExceeded" in job.status()["result"]["reason"]


def test_a_deleted_job_leaves_nothing(new_job: NewJob) -> None:
    job = new_job("--min", "1", "--max", "2", "--grace-period", "200", **STEADY)
    job.wait_for_world(2)
    assert job.run("delete", job.name) == 0
    job.wait_for_removal()  # long before the grace period is over: the agents are told, and look for no controller
    for what in ("service", "config_map", "secret", "service_account"):
        job.until(lambda what=what: not _left(job, what), f"no {what} of the job")


def _left(job: KubernetesJob, what: str) -> list[object]:
    core, selector = job.cluster.core, f"elastic-launch/job={job.name}"
    call = {
        "service": core.list_namespaced_service,
        "config_map": core.list_namespaced_config_map,
        "secret": core.list_namespaced_secret,
        "service_account": core.list_namespaced_service_account,
    }[what]
    return list(call(job.cluster.namespace, label_selector=selector).items)
