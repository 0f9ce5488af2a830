"""What a rendezvous server is to hear about pods that others have created: decided from plain data.

The decisions about single pods are those of a job's controller (`reconciling.py`); what is different is that nothing is
created or deleted, and that a pod may not have told its id to its agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .pods import Pod
from .reconciling import Served, TellDrain, TellGone, Wanted, reconcile

_NOBODY_COUNTS = 1 << 30


@dataclass(frozen=True)
class Worker:
    """As the server shows it. `pod` is its pod's id, empty where the agent was not told (`ELASTIC_POD_UID`); then `host` is
    taken for the pod's name, as it is in every pod that does not say otherwise. `stays`: it is not about to leave."""

    agent: str
    host: str
    pod: str
    stays: bool


@dataclass(frozen=True)
class Drained:
    """`host` is what the server knows the pod by."""

    pod: str
    name: str
    host: str


@dataclass(frozen=True)
class Gone:
    pod: str
    agent: str
    reason: str


News = Drained | Gone


def news(
    pods: list[Pod], vanished: dict[str, str], settled: frozenset[str], workers: Iterable[Worker], now: float
) -> list[News]:
    """`vanished` are pods that were seen once and are no more (id -> name), `settled` the ids of those that need not be told."""
    of_pod: dict[str, list[Worker]] = {}
    for worker in workers:
        of_pod.setdefault(_pod_of(worker, pods, vanished), []).append(worker)
    staying = frozenset(pod for pod, members in of_pod.items() if any(worker.stays for worker in members))
    told: list[News] = []
    # A job of no pods, that exists no more, of which nothing counts as a failure: what is left is who leaves or is lost.
    wanted = Wanted(job="", min=0, max=0, backoff_limit=_NOBODY_COUNTS, exists=False)
    for action in reconcile(wanted, pods, vanished, settled, Served(0, 0, staying=staying), now):
        if isinstance(action, TellDrain):
            hosts = {worker.pod or worker.host for worker in of_pod[action.pod]}
            told += [Drained(action.pod, action.name, host) for host in sorted(hosts)]
        elif isinstance(action, TellGone):
            agents = dict.fromkeys(worker.agent for worker in of_pod.get(action.pod, []))
            told += [Gone(action.pod, agent, action.reason) for agent in agents]
    return told


def _pod_of(worker: Worker, pods: list[Pod], vanished: dict[str, str]) -> str:
    """The id of the worker's pod, "" where that cannot be said. Of several of one name it is the newest."""
    if worker.pod:
        return worker.pod
    named = [pod for pod in pods if pod.name == worker.host]
    if named:
        return max(named, key=lambda pod: pod.created).uid
    return next((uid for uid, name in vanished.items() if name == worker.host), "")
