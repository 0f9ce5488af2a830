"""What torchrun's documentation says of failures, membership changes and checkpoints, sentence by sentence.

The script is one of torchrun's (`scripts/digits_ddp.py`); kills are kills.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from .journals import Entry
from .launching import Lab, wait_until_gone
from .networks import Network, reason_without_networks
from .torchrun_jobs import TorchrunJob, free_endpoint, restarts

WITHOUT = reason_without_networks()


@pytest.fixture
def job(lab: Lab) -> TorchrunJob:
    return TorchrunJob(lab)


def elastic(nodes: str, *more: str) -> tuple[str, ...]:
    return (f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}", "--rdzv-id=digits", *more)


# --- Failure Modes ---


def test_if_some_workers_fail_all_are_stopped_and_restarted_up_to_max_restarts(job: TorchrunJob) -> None:
    """For a training job with n workers, if k<=n workers fail all workers are stopped and restarted up to max_restarts."""
    agent = job.launch("--nproc-per-node=3", "--max-restarts=2")
    first = job.wait_for_world(3)
    job.wait_for_epochs(2)
    job.crash(1)
    second = job.wait_for_world(3, after=first)
    assert not {entry["pid"] for entry in first} & {entry["pid"] for entry in second}
    job.wait_for_epochs()
    for entry in second:
        os.kill(entry["pid"], signal.SIGKILL)
    third = job.wait_for_world(3, after=second)
    job.wait_for_epochs()
    left = [psutil.Process(entry["pid"]) for entry in third]
    job.exit(2, 9)
    assert agent.wait() == 9
    assert "3 crashes, --max-restarts is 2" in agent.output
    wait_until_gone(left)
    assert {entry["WORLD_SIZE"] for entry in job.entries("start")} == {"3"}, "a job of fixed size never runs with fewer"
    job.assert_resumed()


def test_without_restarts_the_first_failure_fails_the_job(job: TorchrunJob) -> None:
    agent = job.launch("--nproc-per-node=2", "--max-restarts=0")
    job.wait_for_world(2)
    job.crash(0)
    assert agent.wait() == 1
    assert len(job.starts()) == 1


def test_an_agent_failure_is_a_failure_of_its_workers_and_the_node_can_be_replaced(job: TorchrunJob) -> None:
    """An agent failure results in a local worker group failure. It is up to the job manager to fail the entire job (gang
    semantics) or attempt to replace the node. It counts against no restart."""
    line = elastic("2", "--nproc-per-node=2", "--max-restarts=0")
    first = job.launch(*line)
    job.lab.wait_for_text(first, "serving job")
    second = job.launch(*line)
    before = job.wait_for_world(4)
    job.wait_for_epochs(2)
    left = second.descendants()
    second.signal(signal.SIGKILL)
    wait_until_gone(left)
    third = job.launch(*line)
    after = job.wait_for_world(4, after=before)
    assert not {entry["pid"] for entry in before} & {entry["pid"] for entry in after}
    job.wait_for_epochs(2)
    job.finish()
    assert [first.wait(), third.wait()] == [0, 0]
    job.assert_resumed()
    assert {entry["WORLD_SIZE"] for entry in job.entries("start")} == {"4"}


def test_the_named_host_s_end_is_the_job_s_end(job: TorchrunJob) -> None:
    """As with torchrun, and as documented: who is left says so and ends; nobody forms a world of its own."""
    line = elastic("1:2", "--rdzv-conf=read_timeout=3", "--max-restarts=0")
    first = job.launch(*line)
    job.lab.wait_for_text(first, "serving job")
    second = job.launch(*line)
    job.wait_for_world(2)
    first.signal(signal.SIGKILL)
    assert second.wait(120) == 69
    assert "the rendezvous server is lost" in second.output
    assert "and no worker trains here" in second.output
    assert {entry["WORLD_SIZE"] for entry in job.newest()} == {"2"}


@pytest.mark.soak
def test_a_node_may_fail_while_the_others_initialise_with_it(job: TorchrunJob) -> None:
    """Its peers stand in `init_process_group`, some of them connected, some not: a start that cannot succeed is given up."""
    server = job.lab.serve()
    line = (
        "--nnodes=1:3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={server.url.removeprefix('http://')}",
        "--max-restarts=0",
    )
    agents = [job.launch(*line) for _ in range(3)]
    before = 0
    for victim in (0, 1):
        started = job.lab.wait(lambda: starting(job, 3, before), 90, "the start of three scripts")  # noqa: B023
        agents[victim].signal(signal.SIGKILL)
        job.wait_for_world(2, after=started)
        before = max(job.starts())
        agents[victim] = job.launch(*line)
    job.wait_for_world(3)
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    job.assert_resumed()


def starting(job: TorchrunJob, world_size: int, behind: int) -> list[Entry]:
    """The first script's entry as soon as a start of that size, behind a restart count, has begun."""
    entries = [entry for entry in job.newest("start") if int(entry["WORLD_SIZE"]) == world_size]
    return [entry for entry in entries if restarts(entry) > behind or behind == 0][:1]


@pytest.mark.soak
@pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
def test_a_node_failure_is_the_same_as_an_agent_failure(job: TorchrunJob) -> None:
    """A host falls silent, with all of its connections: nothing is closed, and the others wait in a collective."""
    network = Network()
    try:
        port = job.lab.serve(host=network.address, inside=network.inside).url.rpartition(":")[2]
        line = ("--nnodes=1:3", "--rdzv-backend=c10d", f"--rdzv-endpoint={network.address}:{port}", "--max-restarts=0")
        hosts = [network.add_host() for _ in range(3)]
        agents = [job.launch(*line, inside=host.inside, checkpoint=job.folder / f"{host.name}.pt") for host in hosts]
        three = job.wait_for_world(3)
        job.wait_for_epochs(2)
        hosts[0].cut()
        two = job.wait_for_world(2, after=three, limit=60)
        job.wait_for_epochs()
        hosts[0].mend()
        job.wait_for_world(3, after=two)
        job.wait_for_epochs()
        job.finish()
        assert [agent.wait() for agent in agents] == [0, 0, 0]
        job.assert_resumed()
    finally:
        job.lab.end()
        network.close()


# --- Membership Changes ---


def test_departure_and_arrival_stop_all_workers_and_start_them_with_new_ranks_and_world_size(
    job: TorchrunJob, tmp_path: Path
) -> None:
    """Scale-down by a kill and by SIGTERM, scale-up by a further agent; each node keeps its own checkpoint."""
    server = job.lab.serve()
    line = (
        "--nnodes=1:3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={server.url.removeprefix('http://')}",
        "--max-restarts=0",
    )
    files = [str(tmp_path / f"node-{number}.pt") for number in range(4)]
    agents = [job.launch(*line, checkpoint=files[0])]
    alone = job.wait_for_world(1)
    agents += [job.launch(*line, checkpoint=file) for file in files[1:3]]
    three = job.wait_for_world(3, after=alone)
    assert not {entry["pid"] for entry in alone} & {entry["pid"] for entry in three}
    job.wait_for_epochs(2)
    assert rank_of(three, files[0]) == 0
    agents[0].signal(signal.SIGKILL)  # the first node, with rank 0
    two = job.wait_for_world(2, after=three)
    assert not {entry["pid"] for entry in three} & {entry["pid"] for entry in two}
    assert {rank_of(two, file) for file in files[1:3]} == {0, 1}, "RANK is not stable"
    job.wait_for_epochs(2)
    agents.append(job.launch(*line, checkpoint=files[3]))
    again = job.wait_for_world(3, after=two)
    assert {entry["epoch"] for entry in again} == {again[0]["epoch"]}, (
        "the newest checkpoint of all nodes is everybody's"
    )
    job.wait_for_epochs()
    agents[1].signal(signal.SIGTERM)
    assert agents[1].wait() == 0
    job.wait_for_world(2, after=again)
    job.wait_for_epochs()
    job.finish()
    assert [agents[2].wait(), agents[3].wait()] == [0, 0]
    job.assert_resumed()
    assert job.entries("epoch")[-1]["accuracy"] > 0.8


def test_nodes_of_different_sizes_are_one_job(job: TorchrunJob) -> None:
    """torchrun "only supports homogeneous LOCAL_WORLD_SIZE"; with workers counted instead of nodes there is no such bound."""
    server = job.lab.serve()
    line = ("--rendezvous", server.url, "--min", "1", "--max", "3")
    agents = [job.launch(*line, "--nproc-per-node", "2"), job.launch(*line, "--nproc-per-node", "1")]
    started = job.wait_for_world(3)
    assert sorted(entry["LOCAL_WORLD_SIZE"] for entry in started) == ["1", "2", "2"]
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.soak
def test_more_nodes_than_the_most_wait_until_one_is_needed(job: TorchrunJob) -> None:
    line = elastic("1:2")
    first = job.launch(*line)
    job.lab.wait_for_text(first, "serving job")
    second = job.launch(*line)
    both = job.wait_for_world(2)
    third = job.launch(*line)
    job.wait_for_epochs(3)
    second.signal(signal.SIGKILL)
    job.wait_for_world(2, after=both)
    job.finish()
    assert [first.wait(), third.wait()] == [0, 0]


def rank_of(started: list[dict[str, object]], checkpoint: str) -> int:
    (entry,) = [entry for entry in started if checkpoint in entry["arguments"]]  # type: ignore[operator]
    return int(str(entry["RANK"]))
