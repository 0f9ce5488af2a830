"""Room for the descriptors of many connections."""

from __future__ import annotations

import resource

SPARE = 100  # descriptors beside those of the connections


class DescriptorLimit(Exception):
    """The message says what the limit is and how to raise it."""


def raise_descriptor_limit(needed: int) -> None:
    """Has effect on this process and those that it starts. DescriptorLimit if the system does not allow as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DescriptorLimit(
            f"{needed} open files are needed and {hard} are allowed: raise the hard limit "
            "(ulimit -Hn, or nofile in /etc/security/limits.conf) or give fewer --agents"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
