"""Planned changes: arrivals and departures."""

from __future__ import annotations

from elastic_launch.rendezvous.messages import Announce, Broken, JobSpec, Released

from .simulated_job import SimulatedJob, SimulatedWorker
from .test_membership_loss import nonces, running_job


def told(job: SimulatedJob, worker: SimulatedWorker, kind: type) -> list[object]:
    return [message for message in worker.agent.to_agent if isinstance(message, kind)]


def test_an_arrival_is_taken_in_without_abort() -> None:
    job, members = running_job(2)
    joiner = job.add_agent(1).workers[0]
    job.run()
    assert nonces(job.members) == [*nonces(members), joiner.nonce]
    assert (job.last.abort, job.last.cause, job.last.formed, job.last.joiners) == (False, "joined", 1, 1)
    assert job.last.reason == "a worker joined from host-1" and len(job.running) == 3


def test_arrivals_close_together_are_taken_in_together() -> None:
    job, _members = running_job(2)
    job.add_agent(1)
    job.deliver_everything()
    job.advance(0.04)
    job.add_agent(2)
    job.deliver_everything()
    job.run()
    assert job.newest == 2 and job.last.joiners == 3


def test_more_than_the_maximum_stand_by_until_there_is_room() -> None:
    job, members = running_job(2, most=2)
    standby = job.add_agent(1).workers[0]
    job.run()
    assert job.newest == 1 and job.phase(standby) == "ready"
    job.kill(members[0])
    job.run(restart=False)
    assert nonces(job.members) == [members[1].nonce, standby.nonce]
    assert [a.abort for a in job.announcements] == [False, True, False]


def test_a_joiner_that_dies_after_it_was_announced_costs_one_generation_and_no_state() -> None:
    job, members = running_job(2)
    joiner = job.add_agent(1).workers[0]
    job.deliver_everything()
    job.advance(0.06)
    job.deliver_everything()
    assert job.newest == 2 and len(job.members) == 3
    job.kill(joiner)
    job.run(restart=False)
    assert [a.cause for a in job.announcements] == ["start", "joined", "lost"]
    assert nonces(job.members) == nonces(members) and len(job.running) == 2


def test_a_planned_change_is_overtaken_by_a_loss_and_follows_after_it() -> None:
    job, members = running_job(3)
    joiner = job.add_agent(1).workers[0]
    job.deliver_everything()
    job.advance(0.06)
    job.kill(members[0])
    job.run(restart=False)
    assert [(a.cause, a.abort, a.joiners) for a in job.announcements[1:]] == [
        ("joined", False, 1), ("lost", True, 0), ("joined", False, 1),
    ]  # fmt: skip
    assert nonces(job.members) == [*nonces(members[1:]), joiner.nonce] and len(job.running) == 3


def test_arrivals_wait_while_a_generation_forms() -> None:
    job, _members = running_job(2)
    job.add_agent(1)
    job.deliver_everything()
    job.advance(0.06)
    assert job.newest == 2
    job.add_agent(1)
    job.deliver_everything()
    job.advance(1.0)
    assert job.newest == 2
    job.run()
    assert job.newest == 3 and len(job.running) == 4


def test_a_drained_worker_leaves_at_the_boundary_and_is_released_when_the_others_have_formed() -> None:
    job, members = running_job(3)
    job.drain(members[1])
    job.deliver_everything()
    job.deliver_everything()
    job.advance(0.06)
    assert (job.last.cause, job.last.abort, job.last.world_size) == ("drained", False, 2)
    assert job.last.reason == "worker 1 on host-0 leaves"
    announced = told(job, members[1], Announce)
    assert isinstance(announced[0], Announce)
    assert {place.worker: place.rank for place in announced[0].places}[members[1].nonce] == -1
    assert not told(job, members[1], Released)
    job.run()
    assert members[1].gone_by_plan and nonces(job.members) == nonces([members[0], members[2]])
    assert job.machine.snapshot()["crashes"] == 0 and job.newest == 2


def test_all_workers_of_a_host_leave_together() -> None:
    job, members = running_job(4, hosts=2)
    for worker in members[2:]:
        job.leave(worker)
    job.run()
    assert job.newest == 2 and nonces(job.members) == nonces(members[:2])


def test_a_departure_and_an_arrival_are_taken_together() -> None:
    job, members = running_job(2)
    joiner = job.add_agent(1).workers[0]
    job.leave(members[0])
    job.run()
    assert job.newest == 2 and nonces(job.members) == [members[1].nonce, joiner.nonce]
    assert job.last.reason == "a worker joined from host-1; worker 0 on host-0 leaves"


def test_the_loss_of_a_leaver_breaks_the_ring_that_it_leaves() -> None:
    job, members = running_job(3)
    job.leave(members[1])
    job.deliver_everything()
    job.advance(0.06)
    job.deliver_everything()
    job.kill(members[1])
    job.run()
    assert job.last.cause == "lost" and nonces(job.members) == nonces([members[0], members[2]])
    assert job.newest == 3 and len(job.running) == 2 and job.machine.snapshot()["crashes"] == 0


def test_a_leaver_whose_ring_the_others_left_before_it_breaks_nothing() -> None:
    """It may be the last to come out of the agreed step, and find the sockets of the others closed."""
    job, members = running_job(3)
    job.drain(members[1])
    job.deliver_everything()
    job.deliver_everything()
    job.advance(0.06)
    job.deliver_everything()
    assert job.newest == 2 and job.last.cause == "drained"
    job.send(members[1].agent, Broken(members[1].nonce, 1, "connection closed by peer"))
    job.act()
    job.deliver_everything()
    assert job.formed.generation == 2
    job.run()
    assert job.newest == 2 and members[1].gone_by_plan, job.last
    assert len(job.running) == 2


def test_a_ring_that_breaks_after_its_change_was_announced_breaks_the_change_too() -> None:
    """Whoever is not at the boundary yet cannot follow the plan: so all form anew, from wherever they are."""
    job, members = running_job(3)
    job.drain(members[1])
    job.deliver_everything()
    job.deliver_everything()
    job.advance(0.06)
    job.send(members[0].agent, Broken(members[0].nonce, 1, "connection reset"))
    job.deliver_everything()
    job.advance(1.0)
    assert (job.last.cause, job.last.abort) == ("broken", True)
    job.run()
    assert nonces(job.members) == nonces([members[0], members[2]])


def test_a_leaver_that_became_the_last_holder_stays_until_another_has_the_state() -> None:
    job, members = running_job(2, most=2)
    heir = job.add_agent(1).workers[0]
    job.run()
    job.leave(members[0])
    job.deliver_everything()
    job.advance(0.06)
    assert nonces(job.members) == [members[1].nonce, heir.nonce]
    job.kill(members[1])
    job.run(restart=False)
    assert [(a.cause, a.abort, a.world_size) for a in job.announcements[2:]] == [
        ("lost", True, 1),
        ("joined", False, 2),
        ("drained", False, 1),
    ]
    assert job.running == {heir.nonce} and members[0].gone_by_plan


def test_a_standby_that_is_to_leave_is_released_at_once() -> None:
    job, _members = running_job(1, most=1)
    standby = job.add_agent(1).workers[0]
    job.run()
    job.leave(standby)
    job.run()
    assert standby.gone_by_plan and job.newest == 1


def test_the_last_holder_is_told_to_write_the_checkpoint_when_nobody_can_take_the_state() -> None:
    job, members = running_job(1)
    job.leave(members[0])
    job.deliver_to_server(members[0].agent)
    job.advance(0.06)
    assert told(job, members[0], Released) == [Released(members[0].nonce, last_holder=True)]
    job.run()
    assert job.state == "lost" and job.failed is None


def test_the_last_holder_hands_the_state_over_to_a_ready_worker_before_it_leaves() -> None:
    job, members = running_job(1, most=1)
    heir = job.add_agent(1).workers[0]
    job.run()
    job.leave(members[0])
    job.run()
    assert [nonces([job.workers[n] for n in job.rings[g].members]) for g in (2, 3)] == [
        [members[0].nonce, heir.nonce], [heir.nonce],
    ]  # fmt: skip
    assert job.running == {heir.nonce} and members[0].gone_by_plan


def test_everybody_can_be_drained_at_once() -> None:
    job, members = running_job(3)
    for worker in members:
        job.leave(worker)
    job.deliver_everything()
    job.advance(0.06)
    assert told(job, members[0], Released) == [Released(n, last_holder=True) for n in nonces(members)]
    job.run()
    assert not any(worker.alive for worker in members) and job.newest == 1


def test_everybody_hands_over_to_replacements_that_are_ready() -> None:
    job, members = running_job(2, most=4)
    heirs = job.add_agent(2, ready=False).workers
    job.run(restart=False)
    for heir in heirs:
        job.prepare(heir)
    for worker in members:
        job.leave(worker)
    job.run()
    assert nonces(job.members) == nonces(heirs) and job.state == "running" and job.failed is None


def test_a_drain_below_the_minimum_parks_the_others() -> None:
    job, members = running_job(2, least=2)
    job.leave(members[0])
    job.run()
    assert job.state == "parked" and members[0].gone_by_plan and job.running == {members[1].nonce}


def test_a_worker_of_an_older_lineage_is_a_joiner() -> None:
    job, members = running_job(3, hosts=3)
    job.disconnect(members[0].agent)
    job.run()
    job.connect(members[0].agent)
    job.kill(members[1])
    job.run(restart=False)
    lost = [a for a in job.announcements if a.cause == "lost"]
    assert lost[-1].world_size == 1 and job.rings[lost[-1].generation].members == (members[2].nonce,)
    assert nonces(job.members) == nonces([members[2], members[0]])


def test_the_restart_of_a_crashed_worker_is_a_joiner() -> None:
    job, members = running_job(2)
    job.kill(members[0], 1)
    job.run()
    assert job.members[0] is members[1] and job.members[1].lineage == job.formed.generation
    assert len(job.running) == 2


def test_numbers_only_grow_and_a_spec_with_one_worker_works() -> None:
    job = SimulatedJob(JobSpec(1, 1))
    job.add_agent(1)
    job.run()
    assert job.state == "running" and job.last.world_size == 1
    assert [a.generation for a in job.announcements] == sorted({a.generation for a in job.announcements})


def test_a_change_whose_joiner_gave_up_while_its_host_was_away_is_announced_anew() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    agent = job.add_agent(1)
    job.run()
    holder = agent.workers[0]
    joiner = job.start_worker(agent, 1)
    job.prepare(joiner)
    job.deliver_everything()
    job.advance(0.06)
    job.deliver_everything()
    assert job.newest == 2 and holder.target == joiner.target == 2
    job.disconnect(agent)
    job.advance(1.1)
    assert job.state == "lost" and job.phase(joiner) == "evicted"
    job.connect(agent)
    job.run()
    assert job.running == {holder.nonce, joiner.nonce} and job.newest == 4


def test_a_change_whose_joiner_left_while_its_host_was_away_is_given_up() -> None:
    job = SimulatedJob(JobSpec(1, 2))
    agent = job.add_agent(1)
    job.run()
    holder = agent.workers[0]
    joiner = job.start_worker(agent, 1)
    job.prepare(joiner)
    job.deliver_everything()
    job.advance(0.06)
    job.deliver_everything()
    job.disconnect(agent)
    job.advance(1.1)
    joiner.leaving = True
    job.connect(agent)
    job.run()
    assert joiner.gone_by_plan and job.running == {holder.nonce}


def test_an_evicted_worker_that_is_to_leave_is_a_source_until_the_others_have_formed() -> None:
    job, members = running_job(2, hosts=2)
    job.disconnect(members[1].agent)
    job.advance(1.1)
    assert job.newest == 2
    job.leave(members[1])
    job.connect(members[1].agent)
    for _ in range(3):
        job.deliver_everything()
    assert job.phase(members[1]) == "ready" and members[1].alive
    job.run()
    assert members[1].gone_by_plan and job.formed.generation == 2


def test_a_leaver_that_is_needed_again_after_a_loss_is_a_member_again() -> None:
    job, members = running_job(2, hosts=2)
    job.add_agent(1)
    job.run()
    job.leave(members[1])
    job.deliver_everything()
    job.advance(0.06)
    assert job.newest == 3 and members[1].nonce not in nonces(job.members)
    standby = job.add_agent(1).workers[0]
    job.deliver_everything()
    for worker in job.members:
        job.kill(worker, 66, "rejected")
    job.deliver_everything()
    assert nonces(job.members) == [members[1].nonce] and job.last.abort
    job.run()
    assert members[1].gone_by_plan and job.running == {standby.nonce}
