"""How many workers: `min`, `max` and those of this agent, which lean on each other where they were not given."""

from __future__ import annotations

from ..devices import count_gpus, workers_per_node
from ..hosts.asked import UNBOUNDED, HostsAsked
from .asked import Asked


def sizes(asked: Asked, serves: bool, restarts: bool, agents: int) -> tuple[int, int, int]:
    """`min`, `max` and `nproc`. `agents` is the number of those that were started together."""
    nproc = _nproc(asked)
    maximum = asked.count("max", least=1, default=0)
    # As torchrun means it: scripts that start again at each change, and were asked for so many, never see fewer.
    is_fixed = serves and restarts and maximum == 0 and nproc > 0
    minimum = asked.count("min", least=1, default=nproc if is_fixed else 1)
    each = f", for each of {agents} tasks" if agents > 1 else ""
    if maximum:
        most = f"--max {maximum}"
    elif nproc:
        maximum = nproc * agents
        most = f"--max {maximum} (the default: --nproc-per-node{each})"
    else:
        maximum = (count_gpus(asked.environ) or 1) * agents
        most = f"--max {maximum} (the default: the GPUs of this host, or 1{each})"
    if not nproc:
        nproc = maximum if serves else min(maximum, count_gpus(asked.environ) or 1)
    if minimum > maximum and (serves or asked.said("min") is not None):
        asked.fail(f"--min {minimum} is above {most}: raise --max or lower --min")
    if nproc > maximum:
        asked.fail(f"--nproc-per-node {nproc} is above {most}: raise --max or lower --nproc-per-node")
    return minimum, maximum, nproc


def sizes_over(asked: Asked, hosts: HostsAsked) -> tuple[int, int]:
    """`min` and `max` of a job on several hosts."""
    minimum = asked.count("min", least=1, default=1)
    maximum = asked.count("max", least=1, default=hosts.room or UNBOUNDED)
    if minimum > maximum:
        asked.fail(f"--min {minimum} is above --max {maximum}: raise --max or lower --min")
    if hosts.fixed and minimum > hosts.room:
        asked.fail(f"the hosts have {hosts.room} slots, fewer than the {minimum} workers that the job needs at least")
    return minimum, maximum


def _nproc(asked: Asked) -> int:
    """0 if it was not given."""
    given = asked.said("nproc_per_node")
    if given is None:
        return 0
    return asked.understood(lambda: workers_per_node(given.value, given.where, asked.environ))
