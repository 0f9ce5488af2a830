"""What was asked for: one frozen record, from flags or a file, kept as JSON in an annotation of the job's object."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import UsageError
from ..rendezvous.messages import JobSpec
from .naming import check_name

_WEEK = 7 * 24 * 3600.0
_SHUTDOWN_SLACK = 5.0  # seconds of the grace period for an agent that has killed its workers to exit itself


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`min` and `max` count pods, of `nproc_per_pod` workers each. Durations are seconds.

    `command` is the script and its arguments, as `elastic-launch` takes them (`-m` before a module's name). `cpu` and
    `memory` are both request and limit of a worker pod, in Kubernetes' quantities. `backoff_limit` counts crashes of
    workers and failures of pods together. `pod_template` and `controller_pod_template` are merged into the pods. Without a
    `controller_image` the controller runs in the workers'.
    """

    name: str
    image: str
    command: list[str]
    min: int = 1
    max: int = 1
    nproc_per_pod: int = 1
    cpu: str = ""
    memory: str = ""
    gpu: int = 0
    priority_class: str = ""
    env: dict[str, str] = {}
    volumes: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    service_account: str = ""
    controller_image: str = ""
    controller_service_account: str = ""
    image_pull_policy: str = ""
    user: int = 1000
    pod_template: dict[str, Any] = {}
    controller_pod_template: dict[str, Any] = {}
    ttl: int | None = None
    backoff_limit: int = 3
    active_deadline: int | None = None
    grace_period: int = 60
    min_timeout: float = _WEEK
    hang_timeout: float = 300.0
    store: str = ""
    network_policy: bool = False

    @property
    def spec(self) -> JobSpec:
        """As the rendezvous server and the agents have to say it, in workers."""
        return JobSpec(
            min=self.min * self.nproc_per_pod,
            max=self.max * self.nproc_per_pod,
            max_restarts=self.backoff_limit,
            min_timeout=self.min_timeout,
            hang_timeout=self.hang_timeout,
            shutdown_timeout=max(1.0, self.grace_period - _SHUTDOWN_SLACK),
        )


def check_sizes(least: int, most: int) -> None:
    """UsageError for numbers of pods that no job can have."""
    if not 1 <= least <= most:
        raise UsageError(f"a job needs 1 <= --min <= --max, not --min {least} --max {most}: change one of them")


def check(request: JobRequest) -> JobRequest:
    """The request itself. UsageError, which says what to do, for what cannot work."""
    check_name(request.name)
    check_sizes(request.min, request.max)
    if not request.command:
        raise UsageError("the script is missing: give it and its arguments after --, as in -- train.py --epochs 10")
    if not request.image:
        raise UsageError("--image is missing: an image with elastic-launch, the script and what it imports")
    for name, least in (("nproc_per_pod", 1), ("gpu", 0), ("backoff_limit", 0), ("grace_period", 1), ("user", 1)):
        if getattr(request, name) < least:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {getattr(request, name)}: give a number of at least {least}")
    if request.active_deadline is not None and request.active_deadline < 1:
        raise UsageError(f"--active-deadline is {request.active_deadline}: give a number of seconds of at least 1")
    if request.store and not request.store.startswith(("etcd:", "etcds:")):
        raise UsageError(f"--store is {request.store!r}: give the address of an etcd, or leave it out")
    return request


def encode(request: JobRequest) -> str:
    return msgspec.json.encode(request).decode()


def decode(text: str) -> JobRequest:
    """UsageError if it is none."""
    try:
        return check(msgspec.json.decode(text, type=JobRequest))
    except msgspec.MsgspecError as error:
        raise UsageError(f"this is no job request: {error}") from error


class Result(msgspec.Struct, frozen=True):
    """How a job has ended: the exit code, why in words, and the last lines of whoever failed it."""

    code: int
    reason: str = ""
    tail: str = ""
