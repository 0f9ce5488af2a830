"""What a job's objects in the cluster are called, and how they are told apart."""

from __future__ import annotations

import re

from ..errors import UsageError

JOB_LABEL = "elastic-launch/job"
ROLE_LABEL = "elastic-launch/role"
REQUEST_ANNOTATION = "elastic-launch/request"
"""On the Job: what was submitted, as JSON."""
SCALE_ANNOTATION = "elastic-launch/scale"
"""On the Job: MIN,MAX in pods, as it was last asked for."""
RESULT_ANNOTATION = "elastic-launch/result"
"""On the Job: how it has ended, as JSON."""

TOKEN_FILE = "/var/run/elastic-launch/token"
"""In every pod of a job: the content of its Secret."""

CONTROLLER, WORKER = "controller", "worker"  # roles, and the names of the containers
PORT = 29600

_NAME = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"


def check_name(name: str) -> str:
    """The name itself. UsageError if a Service cannot be called so, or the names made of it would be too long."""
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"{name[:80]!r} cannot be a job's name: use 1 to 40 lower-case letters, digits and '-', the first one a letter,"
            " the last one no '-'"
        )
    return name


def labels(job: str, role: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "elastic-job", JOB_LABEL: job, ROLE_LABEL: role}


def worker_selector(job: str) -> str:
    return f"{JOB_LABEL}={job},{ROLE_LABEL}={WORKER}"


def pod_name(job: str, number: int) -> str:
    return f"{job}-worker-{number}"


def controller_account(job: str) -> str:
    """The name of the controller's service account, role and role binding."""
    return f"{job}-controller"


def store_name(job: str) -> str:
    """The ConfigMap that holds what must outlive the controller's pod."""
    return f"{job}-state"


def status_name(job: str) -> str:
    """The ConfigMap that holds what `elastic-job status` shows."""
    return f"{job}-status"


def token_name(job: str) -> str:
    """The Secret with what agents show to the rendezvous server."""
    return f"{job}-token"


def service_variable(job: str) -> str:
    """The variable with the Service's address, in every pod that is made after it: no cluster DNS is needed."""
    return job.upper().replace("-", "_") + "_SERVICE_HOST"
