"""Servers that share an etcd of three members, each part of which fails in turn: the ring does not notice."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from aetcd import rpc

from ..rendezvous.etcds import Etcd, running_cluster, running_etcd
from .launching import Command, Lab, wait_for
from .lines import Line

PAUSE = 0.02  # seconds that a step takes at least
CONTROL = 2.5  # seconds of undisturbed training before and after each fault
ATTEMPTS = 3


@dataclass
class Replica:
    """A server, and its own line to each member of etcd."""

    command: Command
    lines: list[Line]

    @property
    def url(self) -> str:
        return self.command.url

    @property
    def leads(self) -> bool:
        return self.command.process.poll() is None and answer(f"{self.url}/v1/jobs")[0] == 200


class Service:
    def __init__(self, lab: Lab, etcds: list[Etcd], count: int) -> None:
        self.etcds = etcds
        self._lab = lab
        self.replicas = [self._start() for _ in range(count)]

    def _start(self) -> Replica:
        lines = [Line(etcd.endpoint) for etcd in self.etcds]
        store = "etcd://" + ",".join(line.endpoint for line in lines)
        return Replica(self._lab.serve("--store", store), lines)

    @property
    def urls(self) -> str:
        return ",".join(replica.url for replica in self.replicas)

    def leader(self, limit: float = 20) -> Replica:
        return wait_for(lambda: next((r for r in self.replicas if r.leads), None), limit, "a leader")  # type: ignore[no-any-return]

    def close(self) -> None:
        self._lab.end()
        for replica in self.replicas:
            for line in replica.lines:
                line.close()


def answer(url: str) -> tuple[int, Any]:
    """Status and content, without following anybody elsewhere; 0 if nobody answers."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any, **options: Any) -> None:
            return None

    try:
        with urllib.request.build_opener(Stay, urllib.request.ProxyHandler({})).open(url, timeout=2) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


@pytest.fixture
def service(lab: Lab) -> Iterator[Service]:
    with running_cluster("3.4") as etcds:
        service = Service(lab, etcds, 5)  # the leader is killed up to three times
        try:
            yield service
        finally:
            service.close()


def train(lab: Lab, urls: str, count: int, most: int) -> list[Command]:
    agents = [launch(lab, urls, most) for _ in range(count)]
    lab.wait_for_world(count)
    lab.wait_for_steps(20)
    return agents


def launch(lab: Lab, urls: str, most: int) -> Command:
    return lab.launch("--rendezvous", urls, "--min", "1", "--max", str(most), open_ended=True, pause=PAUSE)


def step_times(lab: Lab, began: float, ended: float) -> list[float]:
    """Seconds from step to step of rank 0 in that time."""
    times = [entry["time"] for entry in lab.journal("step", rank=0) if began <= entry["time"] <= ended]
    return [after - before for before, after in itertools.pairwise(times)]


def lateness(times: list[float], controls: list[float]) -> str:
    """How steps were later than the 99th percentile of undisturbed ones; empty if they were not."""
    usual = statistics.quantiles(controls, n=100)[98] + PAUSE / 2
    late = sum(seconds > usual for seconds in times)
    if len(times) > 20 and late <= max(3, len(times) // 20) and max(times) < 1.0:
        return ""
    return f"{late} of {len(times)} steps took more than {usual:.3f} s, the longest {max(times, default=0.0):.2f} s"


def test_a_ring_goes_on_stepping_whatever_part_of_the_service_fails(lab: Lab, service: Service) -> None:
    agents = train(lab, service.urls, 2, 2)
    first = lab.generation()
    pids = sorted(worker.pid for agent in agents for worker in agent.workers())
    controls: list[float] = []

    def undisturbed() -> None:
        began = time.monotonic()
        time.sleep(CONTROL)
        controls.extend(step_times(lab, began, time.monotonic()))

    def disturbed(
        name: str, fault: Callable[[], None], lasting: float, mend: Callable[[], None] = lambda: None
    ) -> None:
        """What a fault does to the steps, it does again; what other programs of this machine do to them, it does not."""
        told = []
        for _ in range(ATTEMPTS):
            began = time.monotonic()
            fault()
            time.sleep(lasting)
            times = step_times(lab, began, time.monotonic())
            mend()
            service.leader()
            undisturbed()
            told.append(lateness(times, controls))
            if not told[-1]:
                return
        raise AssertionError(f"{name}: {'; '.join(told)}")

    def kill_the_leader() -> None:
        service.leader().command.signal(signal.SIGKILL)

    def cut_off_the_leader() -> None:
        for line in service.leader().lines:
            line.cut()

    def mend_all_lines() -> None:
        for replica in service.replicas:
            for line in replica.lines:
                line.mend()

    undisturbed()
    member = service.etcds[0]
    disturbed("one of three etcd members is killed", member.process.kill, 4, member.start)
    disturbed("etcd's history is compacted under the watchers", lambda: compact(service.etcds[1]), 2)
    disturbed("the leader is killed", kill_the_leader, 5)
    disturbed("the leader is cut off from etcd", cut_off_the_leader, 6, mend_all_lines)
    disturbed("etcd is restarted", lambda: [each.process.kill() for each in service.etcds], 3, lambda: restart(service))
    assert lab.generation() == first, "a loss was declared that was none"
    assert sorted(worker.pid for agent in agents for worker in agent.workers()) == pids
    lab.finish()
    assert [agent.wait() for agent in agents] == [0, 0]
    lab.assert_exact(members=2)


@pytest.mark.parametrize(("seconds", "soon"), [(12, 8.0), pytest.param(60, 2.0, marks=pytest.mark.soak)])
def test_what_came_in_while_etcd_was_gone_for_long_is_handled_soon_after_its_return(
    lab: Lab, seconds: int, soon: float
) -> None:
    """Within 2 s, if the machine has nothing else to do, as in the soak."""
    with running_etcd("3.4") as etcd:
        service = Service(lab, [etcd], 2)
        try:
            agents = train(lab, service.urls, 2, 3)
            first = lab.generation()
            agents.append(launch(lab, service.urls, 3))
            with lab.held("joining"):
                etcd.process.kill()
                gone_at = time.monotonic()
                wait_for(lambda: all(answer(f"{r.url}/v1/jobs")[0] == 503 for r in service.replicas), 20, "a freeze")
            before = lab.step()
            time.sleep(max(0.0, gone_at + seconds - time.monotonic()))
            assert lab.step() > before + 100
            assert (lab.generation(), lab.world_size()) == (first, 2)
            etcd.start()
            service.leader()
            began = time.monotonic()
            lab.wait_for_world(3)
            assert lab.journal("change", generation=first + 1)[0]["time"] - began < soon
            assert lab.generation() == first + 1
            lab.finish()
            assert [agent.wait() for agent in agents] == [0, 0, 0]
            lab.assert_exact(members=3)
        finally:
            service.close()


def test_a_ring_of_one_goes_on_while_nobody_decides_and_stops_when_nobody_answers(lab: Lab) -> None:
    with running_etcd("3.4") as etcd:
        service = Service(lab, [etcd], 2)
        try:
            (agent,) = train(lab, service.urls, 1, 1)
            etcd.process.kill()
            wait_for(lambda: all(answer(f"{r.url}/v1/jobs")[0] == 503 for r in service.replicas), 20, "a freeze")
            time.sleep(5)
            before = lab.step()
            lab.wait_for_steps(100, limit=30)
            assert "alone in its ring" not in agent.output, f"it stood still before step {before}"
            for replica in service.replicas:
                replica.command.signal(signal.SIGKILL)
            lab.wait_for_text(agent, "alone in its ring", limit=30)
            time.sleep(1)  # for the step that was under way
            stopped_at = lab.step()
            time.sleep(1)
            assert lab.step() == stopped_at
        finally:
            service.close()


def test_a_load_balancer_that_drops_every_connection_costs_nobody_anything(lab: Lab) -> None:
    server = lab.serve()
    line = Line(server.url.removeprefix("http://"))
    try:
        agents = train(lab, f"http://{line.endpoint}", 3, 3)
        first = lab.generation()
        for _ in range(5):
            line.drop()
            lab.wait_for_steps(30)
        assert lab.generation() == first and lab.world_size() == 3
        lab.finish()
        assert [agent.wait() for agent in agents] == [0, 0, 0]
        lab.assert_exact(members=3)
    finally:
        lab.end()
        line.close()


def compact(etcd: Etcd) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(etcd.endpoint) as channel:
            newest = (await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"x"), timeout=5)).header.revision
            await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=newest, physical=True), timeout=5)

    asyncio.run(run())


def restart(service: Service) -> None:
    for each in service.etcds:
        each.start(wait=False)
    for each in service.etcds:
        each.wait_until_ready()
