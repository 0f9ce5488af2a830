"""The first generation, and jobs that never get one."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.messages import Exited, Failed, Hello, JobSpec, Refused

from .simulated_job import SimulatedJob


def test_a_job_starts_when_its_minimum_is_ready() -> None:
    job = SimulatedJob(JobSpec(2, 2))
    job.add_agent(1)
    job.run()
    assert job.state == "starting" and not job.announcements
    job.add_agent(1)
    job.run()
    assert job.state == "running"
    assert (job.last.cause, job.last.formed, job.last.world_size, job.last.abort) == ("start", 0, 2, False)
    assert len(job.running) == 2


def test_the_first_generation_waits_for_workers_that_still_prepare() -> None:
    job = SimulatedJob(JobSpec(1, 8))
    job.add_agent(2)
    late = job.add_agent(1, ready=False).workers[0]
    job.deliver_everything()
    job.advance(1.9)
    assert not job.announcements
    job.prepare(late)
    job.deliver_everything()
    job.advance(0.06)
    assert job.last.world_size == 3


def test_the_first_generation_does_not_wait_for_ever() -> None:
    job = SimulatedJob(JobSpec(1, 8))
    job.add_agent(2)
    job.add_agent(1, ready=False)
    job.deliver_everything()
    job.advance(2.01)
    assert job.last.world_size == 2


def test_the_first_generation_waits_for_nobody_when_it_is_full() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    job.add_agent(1, ready=False)
    job.add_agent(2)
    job.deliver_everything()
    assert job.last.world_size == 2 and job.now == 0.0


def test_ranks_of_a_host_follow_each_other() -> None:
    job = SimulatedJob(JobSpec(4, 4))
    first = job.add_agent(2, ready=False)
    second = job.add_agent(2, ready=False)
    for worker in (second.workers[1], first.workers[1], second.workers[0], first.workers[0]):
        job.prepare(worker)
        job.deliver_everything()
    job.run()
    assert [(w.agent.name, w.slot) for w in job.members] == [
        ("agent-0", 0), ("agent-0", 1), ("agent-1", 0), ("agent-1", 1),
    ]  # fmt: skip
    assert job.last.meeting == "host-0:1" and job.last.secret == "secret"


def test_a_loss_while_the_first_generation_forms_starts_it_anew() -> None:
    job = SimulatedJob(JobSpec(2, 3))
    agent = job.add_agent(3)
    job.deliver_everything()
    job.kill(agent.workers[0])
    job.run(restart=False)
    assert [a.cause for a in job.announcements] == ["start", "start"]
    assert job.state == "running" and job.last.world_size == 2 and job.last.formed == 0


def test_a_first_generation_that_falls_below_the_minimum_waits_for_more() -> None:
    job = SimulatedJob(JobSpec(2, 2))
    agent = job.add_agent(2)
    job.deliver_everything()
    job.kill(agent.workers[0])
    job.run(restart=False)
    assert job.state == "starting" and job.phase(agent.workers[1]) == "ready"
    job.run()
    assert job.state == "running" and job.formed.generation == 2


def test_too_few_workers_for_too_long_fail_the_job() -> None:
    job = SimulatedJob(JobSpec(3, 4, min_timeout=60.0))
    agent = job.add_agent(2)
    job.run()
    job.advance(60.0)
    job.run()
    assert job.failed is not None and job.failed.code == 75
    assert "fewer than 3 workers for 60 s" in job.failed.reason and "2 were ready" in job.failed.reason
    assert agent.told_end == "Failed"


def test_the_failure_names_processes_that_never_call_join() -> None:
    job = SimulatedJob(JobSpec(1, 2, min_timeout=60.0))
    job.add_agent(2, ready=False)
    job.run(restart=False)
    job.advance(60.0)
    assert job.failed is not None and "2 processes run but have not called elastic.join()" in job.failed.reason


def test_arrivals_stop_the_clock_of_a_job_below_its_minimum() -> None:
    job = SimulatedJob(JobSpec(2, 2, min_timeout=60.0))
    job.add_agent(1)
    job.run()
    job.advance(50.0)
    job.add_agent(1)
    job.run()
    job.advance(100.0)
    assert job.state == "running"


def test_a_job_of_scripts_that_never_join_is_done_when_all_have_ended_well() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    agent = job.add_agent(2, ready=False)
    job.deliver_everything()
    job.kill(agent.workers[0], 0, "done")
    job.run(restart=False)
    assert job.state == "starting"
    job.kill(agent.workers[1], 0, "done")
    job.run(restart=False)
    assert job.state == "done" and agent.told_end == "Done"


def test_rejected_workers_are_not_restarted_and_the_last_one_fails_a_job_that_never_started() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    agent = job.add_agent(2)
    job.deliver_everything()
    job.kill(agent.workers[0], 66, "rejected")
    job.run()
    assert job.state == "running" and not agent.restarts and job.machine.snapshot()["crashes"] == 0

    job = SimulatedJob(JobSpec(1, 1))
    agent = job.add_agent(1, ready=False)
    job.kill(agent.workers[0], 66, "rejected", tail="size mismatch for weight")
    job.run(restart=False)
    assert job.failed is not None and (job.failed.code, job.failed.tail) == (66, "size mismatch for weight")


def test_an_agent_whose_job_contradicts_the_running_one_is_refused() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    job.add_agent(1)
    job.run()
    effects = job.machine.said("other", Hello("other", "host", "host:1", JobSpec(1, 4)), job.now)
    refusals = [e.message for e in effects if hasattr(e, "message") and isinstance(e.message, Refused)]
    assert len(refusals) == 1 and "max=4" in refusals[0].reason
    assert job.state == "running"


def test_draining_an_unknown_worker_is_an_error() -> None:
    with pytest.raises(KeyError):
        SimulatedJob(JobSpec()).machine.drain("nobody", 0.0)


def test_messages_before_the_first_hello_are_ignored() -> None:
    machine = Membership(JobSpec())
    assert machine.said("agent", Exited("w", 1), 0.0) == []
    assert machine.closed("agent", 0.0) == []
    assert machine.next_deadline() is not None, "the clock of --min-timeout runs"


def test_a_stopped_job_releases_everybody_and_fails_with_the_code_of_the_stop() -> None:
    from elastic_launch.rendezvous.messages import Stop

    job = SimulatedJob(JobSpec(1, 3))
    agent = job.add_agent(2)
    standby = job.add_agent(1, ready=False)
    job.run(restart=False)
    job.send(agent, Stop(130, "stopped by SIGINT"))
    job.run(restart=False)
    assert job.failed == Failed(130, "stopped by SIGINT")
    assert not standby.living and not agent.living
    assert job.machine.snapshot()["crashes"] == 0


def test_a_stop_ends_a_job_whose_workers_do_not_follow() -> None:
    from elastic_launch.rendezvous.messages import Stop

    job = SimulatedJob(JobSpec(1, 1))
    agent = job.add_agent(1)
    job.run()
    job.send(agent, Stop(130))
    job.deliver_to_server(agent)
    agent.to_agent.clear()
    job.advance(29.0)
    assert job.state == "stopping"
    job.advance(1.1)
    assert job.failed is not None and job.failed.code == 130
