"""Hosts that vanish without a word: their links are cut, and nothing closes, resets or refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .launching import Command, Lab, wait_for
from .networks import Host, Network, reason_without_networks

WITHOUT = reason_without_networks()
pytestmark = pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
LEASE = 3.0  # seconds, the default


@pytest.fixture
def network(lab: Lab) -> Iterator[Network]:
    """Hosts end after the commands that run on them."""
    network = Network()
    yield network
    lab.end()
    network.close()


def serve(lab: Lab, network: Network) -> str:
    port = lab.serve(host=network.address, inside=network.inside).url.rpartition(":")[2]
    return f"http://{network.address}:{port}"


def launch(lab: Lab, host: Host, url: str, *flags: str, **options: object) -> Command:
    flags = ("--rendezvous", url, "--advertise-address", host.address, *flags)
    return lab.launch(*flags, inside=host.inside, open_ended=True, pause=0.02, **options)  # type: ignore[arg-type]


def test_a_host_that_falls_silent_is_lost_within_the_lease_and_joins_again(lab: Lab, network: Network) -> None:
    url = serve(lab, network)
    hosts = [network.add_host() for _ in range(3)]
    agents = [launch(lab, host, url, "--min", "1", "--max", "3") for host in hosts]
    lab.wait_for_world(3)
    lab.wait_for_steps(5)
    silent = int(lab.journal("change", generation=lab.generation(), rank=2)[0]["pid"])
    (index,) = [i for i, agent in enumerate(agents) if silent in {worker.pid for worker in agent.workers()}]
    before = lab.generation()
    hosts[index].cut()
    began = time.monotonic()
    lab.wait_for_world(2, limit=20)
    assert time.monotonic() - began < LEASE + 3
    lab.wait_for_steps(20)
    stale = [entry for entry in lab.journal("step", pid=silent) if entry["generation"] > before]
    assert not stale, "the side that was cut off has formed a world of its own"
    hosts[index].mend()
    lab.wait_for_world(3, limit=40)
    lab.wait_for_steps(5)
    lab.finish()
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    lab.assert_exact(members=3)


def test_a_ring_of_one_that_is_cut_off_stops_stepping_and_goes_on_when_it_is_heard_again(
    lab: Lab, network: Network
) -> None:
    url = serve(lab, network)
    host = network.add_host()
    agent = launch(lab, host, url, "--min", "1", "--max", "2")
    lab.wait_for_world(1)
    lab.wait_for_steps(5)
    host.cut()
    lab.wait_for_text(agent, "alone in its ring", limit=LEASE + 5)
    time.sleep(1)  # for the step that was under way
    stopped_at = lab.step()
    time.sleep(2)
    assert lab.step() == stopped_at
    host.mend()
    wait_for(lambda: lab.step() > stopped_at + 5, 30, "steps after the link was mended")
    assert lab.generation() == 1, "nobody else has gone on: the state is where it was"
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=1)
