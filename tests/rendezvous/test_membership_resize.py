"""`min` and `max` of a running job change, and hosts are drained."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.membership.members import Worker
from elastic_launch.rendezvous.membership.pace import Pace
from elastic_launch.rendezvous.membership.resizing import surplus
from elastic_launch.rendezvous.messages import Beat, JobSpec

from .simulated_job import SimulatedJob
from .test_membership_loss import nonces, running_job


def workers_of(*hosts: int) -> list[Worker]:
    """Members in rank order, so many of each host."""
    return [Worker(f"{host}.{n}", f"host-{host}", n, 0.0) for host, count in enumerate(hosts) for n in range(count)]


@pytest.mark.parametrize(
    ("hosts", "count", "going"),
    [
        ((4,), 1, ["0.3"]),
        ((2, 2), 2, ["1.0", "1.1"]),
        ((2, 3, 2), 3, ["1.0", "1.1", "1.2"]),
        ((1, 2, 1), 2, ["0.0", "2.0"]),
        ((2, 2), 1, ["1.1"]),
        ((2, 2), 3, ["0.1", "1.0", "1.1"]),
        ((2,), 0, []),
    ],
)
def test_whole_hosts_go_where_that_comes_out_even_and_else_the_last_ranks(
    hosts: tuple[int, ...], count: int, going: list[str]
) -> None:
    assert [worker.nonce for worker in surplus(workers_of(*hosts), count)] == going


def test_two_of_which_only_one_host_is_even_leave_the_first_ones_where_that_is_possible() -> None:
    assert {worker.agent for worker in surplus(workers_of(2, 1, 1), 2)} == {"host-1", "host-2"}


def test_a_lower_maximum_drains_the_last_host_in_one_change() -> None:
    job, members = running_job(4, hosts=2)
    job.resize(1, 2)
    job.run()
    assert nonces(job.members) == nonces(members[:2]) and job.newest == 2
    assert (job.last.cause, job.last.abort) == ("drained", False)
    assert all(worker.gone_by_plan for worker in members[2:]) and job.machine.snapshot()["crashes"] == 0


def test_a_higher_maximum_lets_standby_workers_in() -> None:
    job, members = running_job(2, most=2)
    standby = job.add_agent(2).workers
    job.run()
    assert job.newest == 1
    job.resize(1, 3)
    job.run()
    assert nonces(job.members) == nonces([*members, standby[0]]) and job.phase(standby[1]) == "ready"


def test_slots_that_a_lower_maximum_emptied_are_filled_again_by_a_higher_one() -> None:
    job, _members = running_job(4, hosts=2)
    job.resize(1, 2)
    job.run()
    job.resize(1, 3)
    job.run()
    assert len(job.members) == len(job.running) == 3
    job.resize(1, 4)
    job.run()
    assert len(job.members) == len(job.running) == 4
    assert {worker.agent.name for worker in job.members} == {"agent-0", "agent-1"}


def test_a_maximum_that_rises_again_before_anybody_has_left_costs_no_slot() -> None:
    job, _members = running_job(4)
    job.resize(1, 3)
    job.resize(1, 4)
    job.run()
    assert len(job.running) == 4 and job.machine.snapshot()["crashes"] == 0


def test_the_maximum_does_not_refill_what_a_drained_host_left() -> None:
    job, members = running_job(4, hosts=2)
    job.drain_host("host-1")
    job.run()
    job.resize(1, 8)
    job.run()
    assert nonces(job.members) == nonces(members[:2]) and len(job.running) == 2


def test_a_higher_minimum_parks_the_job_and_a_lower_one_lets_it_go_on() -> None:
    job, members = running_job(2)
    job.resize(3, 4)
    job.run()
    assert job.state == "parked" and nonces(job.members) == nonces(members)
    assert (job.last.cause, job.last.reason, job.last.abort) == ("resized", "min is 3", False)
    job.resize(2, 4)
    job.run()
    assert job.state == "running" and len(job.running) == 2


def test_a_minimum_that_changes_nothing_costs_no_generation() -> None:
    job, _members = running_job(2)
    job.resize(2, 5)
    job.run()
    assert job.newest == 1 and job.state == "running"


def test_a_lower_minimum_starts_a_job_that_waits_for_workers() -> None:
    job = SimulatedJob(JobSpec(min=2, max=2))
    job.add_agent(1)
    job.run()
    assert job.state == "starting"
    job.resize(1, 2)
    job.run()
    assert job.state == "running"


def test_an_agent_that_says_what_the_job_was_at_first_is_still_taken() -> None:
    job, _members = running_job(2, most=2)
    job.resize(1, 3)
    late = job.add_agent(1)
    job.run()
    assert not late.told_end and len(job.running) == 3


@pytest.mark.parametrize(("least", "most"), [(0, 2), (3, 2), (-1, -1)])
def test_sizes_that_no_job_can_have_change_nothing(least: int, most: int) -> None:
    job, _members = running_job(2)
    before = job.size
    with pytest.raises(ValueError, match="1 <= min <= max"):
        job.resize(least, most)
    assert job.size == before


def test_the_surplus_of_a_generation_that_is_still_forming_leaves_when_it_has_formed() -> None:
    job, members = running_job(2)
    job.add_agent(2)
    job.deliver_everything()
    job.advance(0.06)
    assert job.newest == 2 and len(job.members) == 4
    job.resize(1, 2)
    job.run()
    assert nonces(job.members) == nonces(members) and len(job.running) == 2


def test_a_host_is_drained_as_one_and_what_it_starts_later_leaves_too() -> None:
    job, members = running_job(4, hosts=2)
    agent = job.agents["agent-1"]
    job.kill(members[3])
    job.deliver_everything()
    job.drain_host("host-1")
    job.run()
    assert nonces(job.members) == nonces(members[:2])
    assert not [worker for worker in agent.living if not worker.gone_by_plan]


def test_an_unknown_host_cannot_be_drained() -> None:
    job, _members = running_job(1)
    with pytest.raises(KeyError):
        job.drain_host("elsewhere")


def test_a_stop_from_outside_ends_the_job_with_its_code() -> None:
    job, _members = running_job(2)
    job.carry_out(job.machine.stop(130, "stopped over HTTP", job.now))
    job.run()
    assert job.finish is not None and (job.finish.state, job.finish.code) == ("failed", 130)


def test_heartbeats_tell_steps_and_speed_of_their_own_workers_only() -> None:
    job, members = running_job(2, hosts=2)
    for second in range(1, 6):
        job.advance(1.0)
        progress = [(members[0].nonce, 2 * second, 64.0 * second), (members[1].nonce, 1000, 1.0)]
        job.carry_out(job.machine.said(members[0].agent.name, Beat(progress), job.now))
    shown = {worker["worker"]: worker for worker in job.machine.snapshot()["workers"]}
    assert shown[members[0].nonce]["step"] == 10 and shown[members[1].nonce]["step"] == 0
    assert shown[members[0].nonce]["steps_per_second"] == pytest.approx(2.0, rel=0.05)
    assert job.machine.snapshot()["samples_per_second"] == pytest.approx(64.0, rel=0.05)


def test_a_pace_falls_when_no_step_comes_and_starts_afresh_with_an_earlier_step() -> None:
    pace = Pace()
    for second in range(1, 5):
        pace.heard(second, 8.0 * second, float(second))
    assert pace.speed(4.5) == (1.0, 8.0)
    assert pace.speed(8.0) == (0.25, 2.0)
    pace.heard(2, 16.0, 9.0)
    assert pace.speed(9.0) == (0.0, 0.0)
