"""What only whoever owns the node can do to a job: stop parts of the test cluster, kill processes in its pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from .checkout_pod import ROOT

STOP, UP = ROOT.parent / "shared/cluster/stop", ROOT.parent / "shared/cluster/up"


def stop(component: str) -> None:
    """Kill a part of the test cluster, such as kubelet."""
    subprocess.run([STOP, component, "KILL"], check=True, timeout=90)


def start_what_is_stopped() -> None:
    """All else that is up stays up."""
    subprocess.run([UP], check=True, stdout=subprocess.DEVNULL, timeout=180)


@contextmanager
def without(component: str) -> Iterator[None]:
    """It is killed, and started again at the end."""
    stop(component)
    try:
        yield
    finally:
        start_what_is_stopped()


def agent_process(pod: str) -> psutil.Process:
    """The `elastic-launch` in the pod with this id, as the node sees it."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            is_agent = any(word.endswith("elastic-launch") for word in process.cmdline())
            if is_agent and environment.get("ELASTIC_POD_UID") == pod and "ELASTIC_WORKER" not in environment:
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no agent in pod {pod}")
