"""Membership, situation by situation, with an invented clock."""

from __future__ import annotations

from elastic_launch.rendezvous.messages import JobSpec

from .simulated_job import SimulatedJob


def test_smoke() -> None:
    job = SimulatedJob(JobSpec(2, 4))
    agent = job.add_agent(2)
    job.run()
    assert job.state == "running"
    job.kill(agent.workers[0])
    job.run()
    print([e.text for e in job.events])
    assert job.state == "running" and len(job.members) == 2
