"""One and the same command line is run on every node: the one that it names serves the job, the others find it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .journals import Entry
from .launching import Command, Lab, wait_for
from .networks import Network, reason_without_networks
from .torchrun_jobs import TorchrunJob, free_endpoint

WITHOUT = reason_without_networks()


@pytest.fixture
def network(lab: Lab) -> Iterator[Network]:
    """Hosts end after the commands that run on them."""
    network = Network()
    yield network
    lab.end()
    network.close()


@pytest.fixture
def job(lab: Lab) -> TorchrunJob:
    return TorchrunJob(lab)


def serving(agents: list[Command]) -> list[int]:
    return [number for number, agent in enumerate(agents) if "serving job" in agent.output]


def test_agents_of_one_machine_that_run_the_same_line_are_one_job(lab: Lab) -> None:
    line = ("--nnodes", "1:3", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}", "--rdzv-id=digits")
    agents = [lab.launch(*line, open_ended=True, pause=0.02) for _ in range(3)]
    lab.wait_for_world(3)
    assert len(serving(agents)) == 1
    lab.finish()
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    lab.assert_exact(members=3)


def test_the_agent_at_the_endpoint_serves_until_the_others_have_ended(job: TorchrunJob) -> None:
    line = ("--nnodes", "1:2", "--rdzv-endpoint", free_endpoint(), "--shutdown-timeout", "3")
    agents = [job.launch(*line) for _ in range(2)]
    job.wait_for_world(2)
    (number,) = serving(agents)
    agents[number].signal(signal.SIGTERM)
    wait_for(lambda: "it goes on until they have left" in agents[number].output, 30, "the server that stays")
    job.wait_for_world(1)
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
def test_of_several_hosts_the_named_one_serves_whoever_comes_first(job: TorchrunJob, network: Network) -> None:
    """They share a host name, which is the loopback's to each of them: nothing may go by it."""
    hosts = [network.add_host() for _ in range(3)]
    line = ("--nnodes", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[1].address}:29400")
    agents = [job.launch(*line, inside=host.inside) for host in hosts]
    started = job.wait_for_world(3)
    assert serving(agents) == [1]
    assert {entry["MASTER_ADDR"] for entry in started} <= {host.address for host in hosts}
    assert "127.0.0.1" not in {entry["MASTER_ADDR"] for entry in started}
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0, 0]


@pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
def test_a_host_that_does_not_know_its_address_is_told_that_it_serves(job: TorchrunJob, network: Network) -> None:
    """As behind a translated address: nobody has the endpoint's, and only is_host says who serves."""
    host = network.add_host()
    elsewhere = ("--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "203.0.113.7:29400")
    agent = job.launch(*elsewhere, "--rdzv-conf", "is_host=1", inside=host.inside, epochs=1)
    assert agent.wait() == 0
    lost = job.launch(*elsewhere, "--rdzv-conf", "read_timeout=2", inside=host.inside, epochs=1)
    assert lost.wait() == 69
    assert "203.0.113.7:29400" in lost.output


def test_node_0_serves_at_the_master_s_address_and_ranks_follow_node_ranks(job: TorchrunJob, tmp_path: Path) -> None:
    port = free_endpoint().rpartition(":")[2]
    line = ("--nnodes=3", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port", port)
    agents: dict[int, Command] = {}
    for node in (2, 1, 0):  # in the wrong order
        agents[node] = job.launch(*line, f"--node-rank={node}", checkpoint=tmp_path / f"{node}.pt")
    started = job.wait_for_world(6)
    assert serving([agents[node] for node in range(3)]) == [0]
    assert [entry["LOCAL_RANK"] for entry in started] == ["0", "1"] * 3
    assert nodes(started) == [0, 0, 1, 1, 2, 2]
    agents[1].signal(signal.SIGKILL)
    agents[1] = job.launch(*line, "--node-rank=1", checkpoint=tmp_path / "1.pt")
    assert nodes(job.wait_for_world(6, after=started)) == [0, 0, 1, 1, 2, 2], "the last to come has its place again"
    job.finish()
    assert [agent.wait() for agent in agents.values()] == [0, 0, 0]


def nodes(started: list[Entry]) -> list[int]:
    """Of each rank, by the checkpoint that its node was given."""
    return [int(Path(entry["arguments"][entry["arguments"].index("--checkpoint") + 1]).stem) for entry in started]


def test_a_server_that_is_at_the_endpoint_already_is_joined(job: TorchrunJob) -> None:
    """So that no training host is special: the line stays as it is."""
    server = job.lab.serve()
    endpoint = server.url.removeprefix("http://")
    line = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    first, second = job.launch(*line), job.launch(*line)
    before = job.wait_for_world(2)
    assert serving([first, second]) == []
    first.signal(signal.SIGKILL)
    job.wait_for_world(1, after=before)
    job.finish()
    assert second.wait() == 0


def test_any_free_port_is_for_one_node_and_two_such_jobs_do_not_meet(job: TorchrunJob, other_lab: Lab) -> None:
    line = ("--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    other = TorchrunJob(other_lab)
    agents = [job.launch(*line), other.launch(*line)]
    for each in (job, other):
        assert {entry["WORLD_SIZE"] for entry in each.wait_for_world(2)} == {"2"}
        each.finish()
    assert [agent.wait() for agent in agents] == [0, 0]
    urls = [wait_for(lambda: re.search(r"http://localhost:(\d+)", agent.output), 30, "its URL") for agent in agents]  # noqa: B023
    assert len({url[1] for url in urls}) == 2


def test_a_master_s_port_that_is_taken_is_an_error(job: TorchrunJob) -> None:
    server = job.lab.serve()
    port = server.url.rpartition(":")[2]
    agent = job.launch("--nproc-per-node", "1", "--master-port", port)
    assert agent.wait() == 2
    assert f"endpoint 127.0.0.1:{port}: cannot serve the rendezvous" in agent.output
