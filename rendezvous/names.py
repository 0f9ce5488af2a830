"""What a job may be called. The rule is Kubernetes' for label values, because a job's pods carry its name as one."""

from __future__ import annotations

import re

from ..errors import UsageError

JOB_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"


def check_job_name(name: str) -> str:
    """The name itself. UsageError if it is not one."""
    if not re.fullmatch(JOB_NAME, name):
        raise UsageError(
            f"{name[:80]!r} cannot be a job's name: use 1 to 63 letters, digits, '-', '_' and '.', "
            "the first and the last one a letter or a digit"
        )
    return name
