"""Many events that are decided about at once."""

from __future__ import annotations

import time

from elastic_launch.rendezvous.membership.effects import Effect, Event, Persist, Tell
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.membership.members import FormedGeneration, Generation, Timing
from elastic_launch.rendezvous.messages import (
    Announce,
    Broken,
    Exited,
    Formed,
    Hello,
    JobSpec,
    Leaving,
    Ready,
    Release,
    Started,
    ToServer,
)

from .simulated_job import SimulatedJob


def test_what_comes_together_is_one_change() -> None:
    job = SimulatedJob(JobSpec(1, 8))
    agents = [job.add_agent(2) for _ in range(3)]
    job.run()
    before = job.newest
    for agent in agents:
        job.kill(agent.workers[0])
    job.deliver_together(agents)
    assert job.newest == before + 1
    assert job.last.world_size == 3 and job.last.cause == "lost"
    job.run()
    assert job.state == "running" and len(job.running) == 6


def test_nothing_is_decided_while_the_machine_only_hears() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    agent = job.add_agent(2)
    job.run()
    with job.machine.hearing_only():
        heard = job.machine.said(agent.name, Leaving(agent.workers[1].nonce), job.now)
        assert [effect.kind for effect in heard if isinstance(effect, Event)] == ["leaving"]
        assert len(heard) == 1
    decided = job.machine.tick(job.now + 0.1) + job.machine.tick(job.now + 0.2)
    announced = [effect.message for effect in decided if isinstance(effect, Tell)]
    assert [type(message) for message in announced] == [Announce]


def test_what_has_been_decided_about_is_not_decided_again() -> None:
    job = SimulatedJob(JobSpec(1, 1))
    agent = job.add_agent(1)
    job.run()
    assert job.machine.decide(job.now) == []
    with job.machine.hearing_only():
        job.machine.said(agent.name, Formed(agent.workers[0].nonce, job.newest, 1), job.now)
    assert job.machine.decide(job.now) == job.machine.decide(job.now) == []


def test_ranks_say_who_is_a_member_and_who_leaves() -> None:
    generation = Generation(3, ("b", "a"), ("c",), announced_at=0.0)
    assert generation.ranks == {"b": 0, "a": 1, "c": -1}
    assert generation.everyone == ("b", "a", "c")
    assert FormedGeneration(2, ("b", "a")).ranks == {"b": 0, "a": 1}


def test_thousands_of_workers_are_decided_about_in_a_moment() -> None:
    """What grows with their square shows here: it took tens of seconds."""
    count = 5000
    machine = Membership(JobSpec(1, count), Timing())
    spent = time.process_time()

    def say(*messages: tuple[int, ToServer]) -> list[Effect]:
        with machine.hearing_only():
            heard = [effect for n, message in messages for effect in machine.said(f"agent-{n}", message, 1.0)]
        return heard + machine.decide(1.0)

    def told(effects: list[Effect], kind: type) -> int:
        return sum(isinstance(effect, Tell) and isinstance(effect.message, kind) for effect in effects)

    say(*[(n, Hello(f"agent-{n}", f"host-{n}", f"host-{n}:1")) for n in range(count)])
    say(*[(n, Started(f"w{n}", 0)) for n in range(count)])
    assert told(say(*[(n, Ready(f"w{n}")) for n in range(count)]), Announce) == count
    assert any(isinstance(effect, Persist) for effect in say(*[(n, Formed(f"w{n}", 1)) for n in range(count)]))
    assert told(machine.persisted(1, 1.0), Release) == count
    assert told(say((7, Exited("w7", 137, local_rank=0)), (8, Broken("w8", 1))), Announce) == count - 1
    assert time.process_time() - spent < 3.0
