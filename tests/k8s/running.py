"""A job on a real cluster, as a test looks at it and disturbs it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import urllib3

from elastic_launch.k8s.cluster import Cluster
from elastic_launch.k8s.errors import ClusterError, NotFound
from elastic_launch.k8s.following import TOO_LATE
from elastic_launch.k8s.looking_up import controller_pods, last_status, worker_pods
from elastic_launch.k8s.main import main
from elastic_launch.k8s.pods import Pod, pod_of

from ..system.journals import JournalFolder

LIMIT = 90.0  # seconds for anything that a cluster does

T = TypeVar("T")


class KubernetesJob(JournalFolder):
    """`tests/system/scripts/train.py` as a job, with its journal."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.name = name

    # --- as a user ---

    def run(self, command: str, *flags: str, words: list[str] | None = None) -> int:
        """One `elastic-job` command."""
        after = [] if words is None else ["--", *words]
        return main([command, "--namespace", self.cluster.namespace, *flags, *after])

    def submit(self, *flags: str, command: list[str] | None = None, **options: Any) -> None:
        """Without a `command` the journal's script, with its options."""
        words = command or ["tests/system/scripts/train.py", "--journal", "/journal", *_flags(options)]
        assert self.run("submit", self.name, *flags, words=words) == 0

    def wait(self, limit: float = 120) -> int:
        """The job's exit code."""
        code = self.run("wait", self.name, "--timeout", str(limit))
        assert code != TOO_LATE, f"not over within {limit} s\n{self.words()}"
        return code

    def delete(self) -> None:
        try:
            self.cluster.delete_job(self.name)
        except NotFound:
            pass

    # --- looking ---

    def pods(self) -> list[Pod]:
        return [pod_of(item) for item in worker_pods(self.cluster, self.name)]

    def pod_of_rank(self, rank: int) -> Pod:
        """The one that stays: the status may still show one that leaves."""

        def find() -> Pod | None:
            uids = {pod["uid"] for pod in self.status()["pods"] if rank in pod["ranks"]}
            return next((pod for pod in self.pods() if pod.uid in uids and not pod.is_leaving), None)

        return self.until(find, f"a pod with rank {rank}")  # type: ignore[return-value]

    def controller(self) -> Pod:
        """The one that runs."""
        pods = [pod_of(item) for item in controller_pods(self.cluster, self.name)]
        return next(pod for pod in pods if pod.is_live)

    def status(self) -> dict[str, Any]:
        return last_status(self.cluster, self.name)

    def wait_for_event(self, pattern: str) -> None:
        """A Kubernetes Event on the job's object."""
        self.until(
            lambda: any(re.search(pattern, event) for event in self.kubernetes_events()), f"the Event {pattern!r}"
        )

    def kubernetes_events(self) -> list[str]:
        events = self.cluster.events(f"involvedObject.name={self.name}")
        return [f"{event['reason']}: {event['message']}" for event in events]

    def words(self) -> str:
        """What an assertion shows of a job."""
        lines = [f"{pod.name} {pod.state} {pod.trouble}" for pod in self.pods()]
        lines += [event["text"] for event in self.status().get("events", [])]
        for item in controller_pods(self.cluster, self.name):
            try:
                text = b"".join(self.cluster.log(item["metadata"]["name"], "controller", tail=40))
            except ClusterError as error:
                text = str(error).encode()
            lines.append(text.decode(errors="replace"))
        return "\n".join(lines)

    # --- waiting ---

    def until(self, condition: Callable[[], T], what: str, limit: float = LIMIT) -> T:
        end = time.monotonic() + limit
        while not (value := condition()):
            assert time.monotonic() < end, f"waited {limit:g} s for {what}\n{self.words()}"
            time.sleep(0.05)
        return value

    def wait_for_world(self, size: int, limit: float = LIMIT) -> None:
        """Until a ring of that size steps, and the status shows its members."""
        self.until(lambda: self.world_size() == size, f"{size} workers, there are {self.world_size()}", limit)
        self.until(lambda: len(self._ranks()) == size, f"a status with {size} workers", limit)

    def wait_for_steps(self, count: int) -> None:
        step = self.step()
        self.until(lambda: self.step() >= step + count, f"{count} more steps after {step}")

    def wait_for_generation(self, number: int) -> None:
        self.until(lambda: self.generation() >= number, f"generation {number}")

    def wait_for_controller_after(self, before: Pod) -> None:
        def is_there() -> bool:
            found = [pod_of(item) for item in controller_pods(self.cluster, self.name)]
            return any(pod.is_live and pod.uid != before.uid and pod.state == "running" for pod in found)

        self.until(is_there, f"a controller after {before.name}")

    def wait_for_removal(self) -> None:
        """Until nothing of it runs and all pods are to go, the controller's too.

        The kubelet clears them away behind that, which takes it up to a minute on a busy machine. A container that it
        has cleared away before it looked how it ended is said to wait.
        """
        selector = f"elastic-launch/job={self.name}"

        def are_ending() -> bool:
            try:
                pods = self.cluster.core.list_namespaced_pod(self.cluster.namespace, label_selector=selector).items
            except urllib3.exceptions.HTTPError:
                return False  # the API server may close an idle connection at the moment in which it is taken again
            statuses = [status for pod in pods for status in pod.status.container_statuses or ()]
            runs = any(status.state.running is not None for status in statuses)
            return not runs and all(pod.metadata.deletion_timestamp for pod in pods)

        self.until(are_ending, "no container that runs, and pods that are all to go")

    def _ranks(self) -> list[int]:
        return sorted(rank for pod in self.status().get("pods", []) for rank in pod["ranks"])

    def assert_nothing_redone(self) -> None:
        assert not self.journal("redo"), f"{self.journal('redo')}\n{self.journal('change')}\n{self.words()}"

    # --- disturbing ---

    def delete_pod(self, pod: Pod, force: bool = False) -> None:
        """As `kubectl delete pod`, or with `--grace-period=0 --force`."""
        grace = {"grace_period_seconds": 0} if force else {}
        self.cluster.core.delete_namespaced_pod(pod.name, self.cluster.namespace, **grace)


def _flags(options: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in options.items():
        flags += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    return flags
