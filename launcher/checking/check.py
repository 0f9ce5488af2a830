"""Asks all questions and prints the answers."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from ..access import Access
from .finding import any_fails, report
from .framework import look_at_the_framework
from .machine import look_at_the_machine
from .network import look_at_the_network
from .server import look_at_the_server, look_at_the_store

FINE, WOULD_FAIL = 0, 1


def check(
    urls: Sequence[str], job: str, access: Access, environ: Mapping[str, str], in_a_lone_pod: bool = False
) -> int:
    """The exit code: 1 if something would make a job fail. With `urls`, the job is taken to be one of several hosts.

    `in_a_lone_pod`: this is a pod, and no server was given.
    """
    findings = [
        *look_at_the_machine(),
        *look_at_the_network(several_hosts=bool(urls)),
        *look_at_the_server(urls, job, access, in_a_lone_pod),
        look_at_the_store(),
        *look_at_the_framework(environ),
    ]
    print(f"elastic-launch on {socket.gethostname()}:")
    print(report(findings))
    return WOULD_FAIL if any_fails(findings) else FINE
