"""What is known of a job beside its generations and must outlive the server that decides: it changes seldom."""

from __future__ import annotations

import msgspec

from ..messages import Failed, JobSpec


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`spec` is what the job's first agent said; `min` and `max` are what holds, as they can be changed at run time.

    `crashes` have been counted against the budget. `drained` are workers that were asked to leave, by their nonces, and
    `drained_agents` those whose whole host was. `vacated` are slots (agent, local rank) that a lower `max` has emptied.
    `failed` is how the job has failed, if it has.
    """

    spec: JobSpec
    min: int
    max: int
    crashes: int = 0
    drained: list[str] = []
    drained_agents: list[str] = []
    vacated: list[tuple[str, int]] = []
    failed: Failed | None = None
