"""Losses, broken rings, hanging and unreachable members."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.membership.damage import unreachable
from elastic_launch.rendezvous.membership.members import Generation, Timing
from elastic_launch.rendezvous.messages import Broken, Exited, Formed, JobSpec, Stalled

from .simulated_job import SimulatedJob, SimulatedWorker


def running_job(
    workers: int, least: int = 1, most: int = 8, hosts: int = 1
) -> tuple[SimulatedJob, list[SimulatedWorker]]:
    job = SimulatedJob(JobSpec(least, most))
    for _ in range(hosts):
        job.add_agent(workers // hosts)
    job.run()
    assert job.state == "running" and len(job.running) == workers
    return job, job.members


def nonces(workers: list[SimulatedWorker]) -> list[str]:
    return [worker.nonce for worker in workers]


@pytest.mark.parametrize("rank", range(4))
def test_the_others_go_on_at_once_when_a_member_is_killed(rank: int) -> None:
    job, members = running_job(4)
    job.kill(members[rank])
    before = job.now
    job.deliver_everything()
    assert job.now == before and job.last.generation == 2
    assert job.last.abort and job.last.cause == "lost" and job.last.formed == 1
    assert job.last.reason == f"worker {rank} on host-0 was killed by SIGKILL"
    assert nonces(job.members) == nonces(members[:rank] + members[rank + 1 :])
    job.run(restart=False)
    assert job.state == "running" and len(job.running) == 3


def test_rank_0_can_be_lost_twice_in_a_row() -> None:
    job, members = running_job(4)
    job.kill(members[0])
    job.deliver_everything()
    job.act(restart=False)
    job.kill(members[1])
    job.run(restart=False)
    assert nonces(job.members) == nonces(members[2:]) and job.state == "running"


def test_two_losses_at_once_are_one_loss() -> None:
    job, members = running_job(4)
    job.kill(members[1])
    job.kill(members[2])
    job.run(restart=False)
    assert nonces(job.members) == nonces([members[0], members[3]]) and job.state == "running"


def test_one_member_is_enough_to_go_on() -> None:
    job, members = running_job(4)
    for worker in members[1:]:
        job.kill(worker)
    job.run(restart=False)
    assert job.state == "running" and job.running == {members[0].nonce}
    job.run()
    assert len(job.running) == 4


def test_fewer_than_the_minimum_park_until_more_come() -> None:
    job, members = running_job(3, least=2)
    job.kill(members[0])
    job.kill(members[2])
    job.run(restart=False)
    assert job.state == "parked" and job.last.parked
    assert nonces(job.members) == [members[1].nonce]
    job.run()
    assert job.state == "running" and not job.last.parked
    assert job.members[0] is members[1], "whoever holds the state comes first"


def test_a_parked_job_fails_when_nobody_comes() -> None:
    job, members = running_job(2, least=2)
    job.kill(members[0])
    job.run(restart=False)
    job.advance(600.0)
    assert job.failed is not None and job.failed.code == 75


def test_a_loss_while_forming_after_a_loss_is_followed_by_the_next_generation() -> None:
    job, members = running_job(4)
    job.kill(members[3])
    job.deliver_everything()
    job.act(restart=False)
    job.kill(members[2])
    job.run(restart=False)
    assert [a.generation for a in job.announcements] == [1, 2, 3]
    assert job.formed.generation == 3 and nonces(job.members) == nonces(members[:2])


def test_a_loss_that_is_known_before_the_ring_breaks_makes_one_new_generation() -> None:
    job, members = running_job(3)
    job.kill(members[0])
    job.run(restart=False)
    assert job.newest == 2


def test_a_broken_ring_waits_a_moment_for_the_loss_that_explains_it() -> None:
    job, members = running_job(3)
    members[0].alive = False
    job.send(members[1].agent, Broken(members[1].nonce, 1, "connection reset"))
    job.deliver_everything()
    job.advance(0.05)
    assert job.newest == 1
    members[0].alive = True
    job.kill(members[0])
    job.deliver_everything()
    assert job.newest == 2 and job.last.cause == "lost"
    job.run(restart=False)
    assert job.newest == 2


def test_a_ring_that_breaks_without_a_loss_is_formed_again_with_the_same_members() -> None:
    job, members = running_job(3)
    job.send(members[1].agent, Broken(members[1].nonce, 1))
    job.deliver_everything()
    job.advance(0.11)
    assert job.newest == 2 and job.last.abort and job.last.cause == "broken"
    assert nonces(job.members) == nonces(members)
    job.run()
    assert len(job.running) == 3


def test_a_report_about_an_older_ring_is_ignored() -> None:
    job, members = running_job(3)
    job.kill(members[0])
    job.run(restart=False)
    job.send(members[1].agent, Broken(members[1].nonce, 1))
    job.run(restart=False)
    assert job.newest == 2


def test_a_closed_connection_alone_is_no_loss() -> None:
    job, members = running_job(2, hosts=2)
    job.disconnect(members[1].agent)
    job.advance(0.9)
    job.connect(members[1].agent)
    job.run()
    assert job.newest == 1 and len(job.running) == 2


def test_a_closed_connection_is_a_loss_when_the_ring_breaks() -> None:
    job, members = running_job(3, hosts=3)
    job.kill_agent(members[2].agent)
    job.send(members[0].agent, Broken(members[0].nonce, 1))
    job.deliver_everything()
    assert job.newest == 1, "a proxy may have closed it: who lives comes back within a moment"
    job.advance(Timing().settle + 0.001)
    assert job.newest == 2 and nonces(job.members) == nonces(members[:2])


def test_a_ring_that_breaks_while_everybody_has_lost_the_connection_loses_only_who_does_not_come_back() -> None:
    job, members = running_job(3, hosts=3)
    for member in members:
        job.disconnect(member.agent)
    job.kill_agent(members[2].agent)
    job.connect(members[0].agent)
    job.send(members[0].agent, Broken(members[0].nonce, 1))
    job.deliver_everything()
    job.connect(members[1].agent)
    job.deliver_everything()
    job.advance(Timing().settle + 0.001)
    assert job.newest == 2 and nonces(job.members) == nonces(members[:2])


def test_a_closed_connection_is_a_loss_when_it_does_not_come_back() -> None:
    job, members = running_job(2, hosts=2)
    members[1].hung = True
    job.disconnect(members[1].agent)
    job.advance(1.01)
    assert job.newest == 2 and "host-1 closed its connection and did not come back" in job.last.reason


def test_whoever_comes_back_too_late_joins_again() -> None:
    job, members = running_job(2, hosts=2)
    job.disconnect(members[1].agent)
    job.run()
    assert job.formed.generation == 2
    job.connect(members[1].agent)
    job.run()
    assert job.formed.generation == 3 and nonces(job.members) == nonces(members)
    assert job.announcements[2].cause == "joined" and job.announcements[2].joiners == 1


def test_whoever_comes_back_before_the_next_generation_has_formed_is_still_a_holder() -> None:
    job, members = running_job(2, hosts=2)
    job.disconnect(members[1].agent)
    job.advance(1.01)
    assert job.newest == 2
    job.connect(members[1].agent)
    job.deliver_everything()
    job.deliver_everything()
    job.kill(members[0])
    job.run(restart=False)
    assert nonces(job.members) == [members[1].nonce] and job.last.cause == "lost" and job.state == "running"


def test_a_silent_host_is_lost_after_its_lease_and_joins_again_when_it_wakes() -> None:
    job, members = running_job(2, hosts=2)
    members[1].agent.silent = True
    job.advance(3.5)
    job.run()
    assert job.formed.generation == 2 and "silent for 3 s" in job.announcements[1].reason
    members[1].agent.silent = False
    job.run()
    assert job.formed.generation == 3 and len(job.running) == 2


def test_the_silence_of_all_holders_is_waited_for() -> None:
    job, members = running_job(2)
    job.disconnect(members[0].agent)
    job.advance(300.0)
    assert job.state == "lost" and job.failed is None
    job.connect(members[0].agent)
    job.run()
    assert job.state == "running" and job.newest == 1 and len(job.running) == 2


def test_a_server_that_stood_still_takes_nobody_for_lost() -> None:
    job, _members = running_job(4, hosts=2)
    job.pause(60.0)
    job.run()
    assert job.newest == 1 and len(job.running) == 4


def test_a_server_that_stood_still_waits_again_for_connections_that_closed() -> None:
    job, members = running_job(2, hosts=2)
    job.disconnect(members[1].agent)
    job.pause(60.0)
    job.advance(0.9)
    job.connect(members[1].agent)
    job.run()
    assert job.newest == 1 and len(job.running) == 2


def test_what_an_agent_does_not_claim_is_gone() -> None:
    job, members = running_job(3)
    members[2].alive = False
    job.connect(members[0].agent)
    job.deliver_everything()
    assert job.newest == 2 and nonces(job.members) == nonces(members[:2])


def test_a_crash_report_that_was_lost_is_accounted_for_when_it_is_said_again() -> None:
    job, members = running_job(3)
    agent = members[0].agent
    job.disconnect(agent)
    job.kill(members[2])
    job.connect(agent)
    job.deliver_everything()
    assert job.machine.snapshot()["crashes"] == 1 and agent.restarts == [2]
    agent.unanswered[members[2].nonce] = Exited(members[2].nonce, 137, local_rank=2)
    job.connect(agent)
    job.deliver_everything()
    assert job.machine.snapshot()["crashes"] == 1


def test_a_broken_report_that_was_lost_is_in_the_claim() -> None:
    job, members = running_job(2)
    members[0].broken = 1
    job.connect(members[0].agent)
    job.deliver_everything()
    job.advance(0.11)
    assert job.newest == 2


def test_an_announcement_that_was_lost_is_told_again() -> None:
    job, members = running_job(3, hosts=3)
    job.kill(members[0])
    job.deliver_to_server(members[0].agent)
    job.connect(members[1].agent)
    job.run(restart=False)
    assert job.newest == 2 and len(job.running) == 2


def test_a_release_that_was_lost_is_told_again() -> None:
    job = SimulatedJob(JobSpec(2, 2))
    agents = [job.add_agent(1), job.add_agent(1)]
    job.deliver_everything()
    job.act()
    for agent in agents:
        job.deliver_to_server(agent)
    assert job.formed.generation == 1 and not job.running
    for agent in agents:
        job.connect(agent)
    job.run()
    assert len(job.running) == 2 and job.newest == 1


def test_a_formed_report_that_was_lost_is_in_the_claim() -> None:
    job = SimulatedJob(JobSpec(2, 2))
    agents = [job.add_agent(1), job.add_agent(1)]
    job.deliver_everything()
    job.act()
    assert all(isinstance(agent.to_server[0], Formed) for agent in agents)
    for agent in agents:
        job.connect(agent)
    job.run()
    assert job.formed.generation == 1 and len(job.running) == 2


def test_the_member_that_hangs_is_evicted_and_comes_back_as_a_joiner() -> None:
    job, members = running_job(3)
    members[1].hung = True
    for worker in (members[0], members[2]):
        job.send(worker.agent, Stalled(worker.nonce, 1, 300.0))
    job.deliver_everything()
    job.advance(1.9)
    assert job.newest == 1
    job.advance(0.2)
    assert job.newest == 2 and job.last.cause == "evicted" and "worker 1 on host-0 hangs" in job.last.reason
    assert nonces(job.members) == nonces([members[0], members[2]])
    members[1].hung = False
    job.run()
    assert nonces(job.members) == nonces([members[0], members[2], members[1]]) and len(job.running) == 3
    assert job.machine.snapshot()["crashes"] == 0


def test_members_that_all_wait_for_each_other_form_anew() -> None:
    job, members = running_job(2)
    for worker in members:
        job.send(worker.agent, Stalled(worker.nonce, 1))
    job.deliver_everything()
    job.advance(2.1)
    assert job.newest == 2 and job.last.cause == "broken" and len(job.members) == 2


def test_a_member_that_cannot_be_reached_twice_running_is_evicted() -> None:
    job, members = running_job(3)
    job.kill(members[0])
    job.deliver_everything()
    members[2].hung = True
    for generation in (2, 3):
        assert job.newest == generation and len(job.members) == 2
        job.send(members[1].agent, Broken(members[1].nonce, generation, "no answer", [1]))
        job.deliver_everything()
        job.advance(0.5)
    assert job.newest == 4 and nonces(job.members) == [members[1].nonce]
    job.run(restart=False)
    assert job.running == {members[1].nonce}


def test_of_two_members_that_cannot_reach_each_other_one_stays() -> None:
    generation = Generation(5, ("a", "b"), (), 0.0, broken={"b": ("a",), "a": ("b",)})
    assert unreachable(generation, {"a": 2, "b": 2}) == ["a"]
    generation = Generation(5, ("a", "b"), (), 0.0, broken={"a": ("b",), "b": ("a",)})
    assert unreachable(generation, {"a": 2, "b": 2}) == ["b"]


def test_whoever_said_nothing_is_evicted_before_those_that_gave_up() -> None:
    generation = Generation(5, ("a", "b", "c"), (), 0.0, broken={"a": ("c",), "b": ("a", "c")})
    assert unreachable(generation, {"a": 2, "c": 2}) == ["c"]
    assert unreachable(generation, {"a": 2, "c": 1}) == []


def test_a_generation_that_does_not_form_in_time_evicts_those_that_said_nothing() -> None:
    job, members = running_job(3)
    job.kill(members[0])
    job.deliver_everything()
    members[2].hung = True
    job.send(members[1].agent, Formed(members[1].nonce, 2, 7))
    job.deliver_everything()
    job.advance(301.0)
    assert job.newest == 3 and nonces(job.members) == [members[1].nonce]


def test_a_report_of_a_generation_that_was_overtaken_is_ignored() -> None:
    job, members = running_job(3)
    job.kill(members[2])
    job.deliver_everything()
    job.kill(members[1])
    job.deliver_everything()
    assert job.newest == 3
    job.send(members[0].agent, Formed(members[0].nonce, 2, 7))
    job.deliver_everything()
    assert job.formed.generation == 1


def test_a_pod_that_is_gone_is_lost_whatever_its_connection_says() -> None:
    job, members = running_job(2, hosts=2)
    job.report_gone(members[1].agent.name)
    assert job.newest == 2 and job.last.reason == "worker 1 on host-1 is gone: pod deleted"


def test_a_worker_that_cannot_follow_is_replaced_free_of_charge() -> None:
    job, members = running_job(2)
    job.kill(members[1], 66, "stale")
    job.run()
    assert job.machine.snapshot()["crashes"] == 0 and len(job.running) == 2
