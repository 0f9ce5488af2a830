"""How many workers: `min`, `max` and those of this agent, which lean on each other where they were not given."""

from __future__ import annotations

from ..devices import count_gpus, workers_per_node
from ..hosts.asked import UNBOUNDED, HostsAsked
from .asked import Asked
from .place import Place


def sizes(asked: Asked, place: Place, restarts: bool) -> tuple[int, int, int]:
    """`min`, `max` and `nproc` of an agent that serves or joins at `place`."""
    _check_np_beside_nodes(asked)
    serves = place.serves
    agents = place.step.tasks if place.step is not None else 1
    nproc, nproc_where = _nproc(asked, place)
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
        asked.fail(f"{nproc_where} {nproc} is above {most}: raise --max or lower {nproc_where}")
    return minimum, maximum, nproc


def sizes_over(asked: Asked, hosts: HostsAsked) -> tuple[int, int]:
    """`min` and `max` of a job on several hosts."""
    _check_np_beside_nodes(asked)
    minimum = asked.count("min", least=1, default=1)
    maximum = asked.count("max", least=1, default=hosts.room or UNBOUNDED)
    if minimum > maximum:
        asked.fail(f"--min {minimum} is above --max {maximum}: raise --max or lower --min")
    if hosts.fixed and minimum > hosts.room:
        asked.fail(
            f"the hosts have {hosts.room} slots, fewer than the {minimum} workers that the job needs at least: name more"
            " hosts, or give them more slots, or lower --min (-np, --min-np)"
        )
    return minimum, maximum


def _check_np_beside_nodes(asked: Asked) -> None:
    """-np and --nnodes both say the size of the job; where both are given they are to say the same."""
    given, fewest, most = asked.said("num_proc"), asked.said("min"), asked.said("max")
    if given is None or fewest is None or most is None or (fewest.where, most.where) != ("--nnodes", "--nnodes"):
        return
    if not int(fewest.value) == int(given.value) == int(most.value):
        nodes = fewest.value if fewest.value == most.value else f"{fewest.value} to {most.value}"
        asked.fail(
            f"{given.where} {given.value} contradicts --nnodes, which says with --nproc-per-node that the workers are {nodes}"
            f" in all: leave out --nnodes or {given.where}"
        )


def _nproc(asked: Asked, place: Place) -> tuple[int, str]:
    """This agent's workers, 0 if nobody has said how many; and the flag that says it.

    -np counts those of the whole job: an agent that serves alone runs them all, the tasks of a step share them, and one
    that meets others elsewhere cannot know its part.
    """
    given, whole = asked.said("nproc_per_node"), asked.said("num_proc")
    if given is not None:
        return asked.understood(lambda: workers_per_node(given.value, given.where, asked.environ)), "--nproc-per-node"
    if whole is not None and (place.serves or place.step is not None):
        agents = place.step.tasks if place.step is not None else 1
        return -(-int(whole.value) // agents), whole.where
    return 0, "--nproc-per-node"
