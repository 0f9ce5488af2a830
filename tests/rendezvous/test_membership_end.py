"""How jobs end, what crashes cost, what the store's answers do, and servers that start with what the store knows."""

from __future__ import annotations

import pytest

from elastic_launch.rendezvous.membership.budget import CrashBudget, exit_in_words
from elastic_launch.rendezvous.membership.effects import Persist, PersistDone, Tell
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.membership.members import FormedGeneration
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Crashed,
    Done,
    Dying,
    Exited,
    Failed,
    Finished,
    Hello,
    JobSpec,
    Ready,
    Refused,
    Release,
    Released,
    Restart,
    Started,
    WorkerClaim,
)

from .simulated_job import SimulatedJob, SimulatedWorker
from .test_membership_loss import nonces, running_job


def finish(job: SimulatedJob, worker: SimulatedWorker) -> None:
    worker.phase = "finished"
    job.send(worker.agent, Finished(worker.nonce))
    job.deliver_everything()


# --- done --------------------------------------------------------------------------------------------------------------


def test_the_job_is_done_when_all_have_finished() -> None:
    job, members = running_job(3)
    for worker in members[:2]:
        finish(job, worker)
    assert job.state == "running"
    finish(job, members[2])
    assert job.state == "done" and members[0].agent.told_end == "Done"
    assert job.finish is not None and job.finish.state == "done"


def test_nobody_is_told_before_the_success_is_durable() -> None:
    job, members = running_job(1)
    job.instant_store = False
    finish(job, members[0])
    assert job.state == "finishing" and not members[0].agent.told_end
    job.add_agent(1)
    job.run()
    assert job.state == "done" and job.newest == 1
    assert all(agent.told_end == "Done" for agent in job.agents.values())


def test_whoever_comes_after_the_end_is_told() -> None:
    job, members = running_job(1)
    finish(job, members[0])
    late = job.add_agent(2)
    job.run()
    assert late.told_end == "Done"
    again = Membership(JobSpec(), done=True)
    effects = again.said("a", Hello("a", "host", "host:1"), 0.0)
    assert Tell("a", Done()) in effects and again.over and again.state == "done"


def test_standbys_are_told_that_the_job_is_done() -> None:
    job, members = running_job(1, most=1)
    standby = job.add_agent(1)
    job.run()
    finish(job, members[0])
    job.run()
    assert standby.told_end == "Done"


def test_an_announced_change_does_not_keep_a_finished_job() -> None:
    job, members = running_job(2)
    job.add_agent(1)
    job.deliver_everything()
    job.advance(0.06)
    assert job.newest == 2
    for worker in members:
        finish(job, worker)
    assert job.state == "done"


def test_nothing_is_announced_again_while_the_success_is_made_durable() -> None:
    job, members = running_job(1)
    job.instant_store = False
    joiner = job.add_agent(1).workers[0]
    job.deliver_everything()
    job.advance(0.06)
    assert job.newest == 2
    finish(job, members[0])
    assert job.state == "finishing"
    job.connect(joiner.agent)
    job.deliver_to_server(joiner.agent)
    assert not [m for m in joiner.agent.to_agent if isinstance(m, Announce)]
    job.run()
    assert job.state == "done"


def test_no_change_is_planned_once_somebody_has_finished() -> None:
    job, members = running_job(2)
    finish(job, members[0])
    job.add_agent(1)
    job.leave(members[1])
    job.deliver_everything()
    job.advance(1.0)
    assert job.newest == 1
    finish(job, members[1])
    assert job.state == "done"


def test_a_loss_after_some_have_finished_lets_the_others_form_without_them() -> None:
    job, members = running_job(4)
    finish(job, members[0])
    job.kill(members[1])
    job.deliver_everything()
    assert nonces(job.members) == nonces(members[2:]) and job.last.abort
    job.training_is_over = True
    job.run(restart=False)
    assert job.state == "done"


def test_finished_members_count_towards_the_minimum() -> None:
    job, members = running_job(3, least=2)
    finish(job, members[0])
    job.kill(members[1])
    job.deliver_everything()
    assert job.last.world_size == 1 and not job.last.parked


def test_the_job_is_done_when_only_finished_members_are_left() -> None:
    job, members = running_job(3)
    finish(job, members[0])
    finish(job, members[1])
    job.kill(members[2])
    job.deliver_everything()
    assert job.state == "done" and job.newest == 1


def test_the_loss_of_a_finished_member_makes_the_others_form_anew() -> None:
    job, members = running_job(3)
    finish(job, members[0])
    job.kill(members[0])
    job.deliver_everything()
    assert nonces(job.members) == nonces(members[1:])


def test_a_finished_member_whose_connection_closed_is_waited_for() -> None:
    job, members = running_job(2, hosts=2)
    finish(job, members[0])
    job.disconnect(members[0].agent)
    finish(job, members[1])
    assert job.state == "done"
    job.connect(members[0].agent)
    job.run()
    assert members[0].agent.told_end == "Done"


def test_a_drained_pod_that_exits_is_not_the_success_of_the_job() -> None:
    job, members = running_job(1)
    job.leave(members[0])
    job.run()
    assert not members[0].alive and job.state == "lost" and not job.success_decided


# --- crashes -----------------------------------------------------------------------------------------------------------


def test_crashes_beyond_the_budget_fail_the_job_with_the_code_of_the_last() -> None:
    job = SimulatedJob(JobSpec(1, 2, max_restarts=1))
    agent = job.add_agent(2)
    job.run()
    job.kill(agent.living[0], 1)
    job.run()
    assert len(job.running) == 2
    job.kill(agent.living[0], 3, tail="Traceback\nValueError: 3")
    job.run()
    assert job.failed is not None and job.failed.code == 3 and job.failed.tail == "Traceback\nValueError: 3"
    assert "exited with code 3" in job.failed.reason and "--max-restarts" in job.failed.reason


def test_lost_hosts_cost_no_budget() -> None:
    job, members = running_job(3, hosts=3)
    job.kill_agent(members[0].agent)
    job.kill_agent(members[1].agent)
    job.run()
    assert job.state == "running" and job.machine.snapshot()["crashes"] == 0


def test_a_slot_is_filled_again_with_growing_delay() -> None:
    budget = CrashBudget(100)
    delays = [budget.crashed(("agent", 0), f"w{n}", 0, 1, 5.0).delay for n in range(8)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert budget.crashed(("agent", 1), "other", 0, 1, 5.0).delay == 0.0
    assert budget.crashed(("agent", 0), "old", 0, 1, 61.0).delay == 0.0
    assert budget.crashed(("agent", 0), "young", 0, 1, 5.0).delay == 1.0


def test_the_step_that_crashes_two_workers_fails_the_job() -> None:
    job, members = running_job(3)
    job.kill(members[0], 1, step=7)
    job.run(restart=False)
    job.kill(members[1], 139, step=7)
    job.run(restart=False)
    assert job.failed is not None and job.failed.code == 139 and "two workers crashed in step 7" in job.failed.reason


def test_two_workers_that_are_killed_in_one_step_do_not_fail_the_job() -> None:
    job, members = running_job(4)
    job.kill(members[0], 137, step=7)
    job.kill(members[1], 137, step=7)
    job.run()
    assert job.state == "running" and len(job.running) == 4


def test_crashes_outside_of_steps_are_not_compared() -> None:
    job, members = running_job(3)
    job.kill(members[0], 1, step=0)
    job.kill(members[1], 1, step=0)
    job.run()
    assert job.state == "running"


def test_a_crash_is_answered_again_on_the_next_connection_until_the_worker_starts() -> None:
    job, members = running_job(2)
    agent = members[0].agent
    job.kill(members[0], 1)
    job.deliver_to_server(agent)
    job.connect(agent)
    job.deliver_to_server(agent)
    assert Restart(0, 0.0) in agent.to_agent
    effects = job.machine.said(agent.name, Started("new", 0), job.now)
    assert not [e for e in effects if isinstance(e, Tell) and isinstance(e.message, Restart)]
    job.connect(agent)
    effects = job.machine.said(agent.name, agent.to_server[0], job.now)
    assert not [e for e in effects if isinstance(e, Tell) and isinstance(e.message, Restart)]


def test_a_crash_whose_agent_was_away_for_long_is_still_answered() -> None:
    job, members = running_job(1)
    agent = members[0].agent
    job.add_agent(1)
    job.run()
    job.kill(members[0], 1)
    job.deliver_to_server(agent)
    job.disconnect(agent)
    job.advance(120.0)
    job.connect(agent)
    job.run()
    assert len(job.running) == 2 and job.machine.snapshot()["crashes"] == 1


def test_a_dying_worker_is_a_loss_before_it_is_a_crash() -> None:
    job, members = running_job(3)
    agent = members[0].agent
    job.send(agent, Dying(members[0].nonce))
    job.deliver_to_server(agent)
    assert job.newest == 2 and job.machine.snapshot()["crashes"] == 0
    job.kill(members[0], 1)
    job.deliver_to_server(agent)
    assert job.newest == 2 and job.machine.snapshot()["crashes"] == 1


def test_a_job_is_not_done_while_it_is_open_how_a_worker_ended() -> None:
    job = SimulatedJob(JobSpec(1, 2, max_restarts=0))
    agent = job.add_agent(2, ready=False)
    job.send(agent, Dying(agent.workers[1].nonce))
    job.kill(agent.workers[0], 0, "done")
    job.deliver_everything()
    assert job.state == "starting"
    job.kill(agent.workers[1], 3)
    job.deliver_everything()
    assert job.failed is not None and job.failed.code == 3


def test_exits_are_put_into_words() -> None:
    assert exit_in_words(137) == "was killed by SIGKILL"
    assert exit_in_words(3) == "exited with code 3"
    assert exit_in_words(255) == "exited with code 255"


# --- the state is lost -------------------------------------------------------------------------------------------------


def test_the_job_fails_when_every_holder_is_dead_and_there_is_no_checkpoint() -> None:
    job, members = running_job(2)
    for worker in members:
        job.kill(worker)
    job.run()
    assert job.failed is not None and job.failed.code == 76 and job.formed.generation == 1


def test_the_script_error_of_the_only_worker_is_the_error_of_the_job() -> None:
    job, members = running_job(1)
    job.kill(members[0], 3, step=5, tail="SystemExit")
    job.run()
    assert job.failed is not None and (job.failed.code, job.failed.tail) == (3, "SystemExit")
    assert "every holder of the state is gone" in job.failed.reason


def test_the_last_resort_checkpoint_is_restored_when_every_holder_is_dead() -> None:
    job, members = running_job(2)
    standby = job.add_agent(1, ready=False).workers[0]
    job.run(restart=False)
    standby.checkpoint = 40
    for worker in members:
        job.kill(worker)
    job.run()
    assert job.failed is None and job.state == "running"
    restored = next(a for a in job.announcements if a.cause == "restored")
    assert restored.formed == 1 and not restored.abort and restored.joiners == restored.world_size
    assert job.rings[restored.generation].members[0] == standby.nonce, "whoever has the checkpoint comes first"
    assert "step 40" in restored.reason


def test_ready_workers_are_asked_again_for_a_checkpoint_when_the_last_holder_has_gone() -> None:
    job, members = running_job(1, most=1)
    job.leave(members[0])
    job.deliver_to_server(members[0].agent)
    job.advance(0.06)
    heir = job.add_agent(1).workers[0]
    job.deliver_to_server(heir.agent)
    for _ in range(3):
        job.deliver_to_server(heir.agent)
    heir.checkpoint = 12
    job.run()
    assert job.failed is None and job.running == {heir.nonce} and job.last.cause == "restored"


def test_holders_that_are_only_silent_are_not_given_up_for_a_checkpoint_at_once() -> None:
    job, members = running_job(1)
    standby = job.add_agent(1, ready=False).workers[0]
    job.run(restart=False)
    job.disconnect(members[0].agent)
    standby.checkpoint = 40
    job.run()
    job.advance(20.0)
    assert job.newest == 1
    job.connect(members[0].agent)
    job.run()
    assert job.formed.generation == 2 and job.members[0] is members[0]


def test_holders_that_come_back_while_a_checkpoint_is_restored_come_first() -> None:
    job, members = running_job(2)
    standby = job.add_agent(1, ready=False).workers[0]
    job.run(restart=False)
    job.disconnect(members[0].agent)
    standby.checkpoint = 40
    job.prepare(standby)
    job.deliver_everything()
    for _ in range(40):
        job.deliver_everything()
        job.advance(1.0)
    assert job.last.cause == "restored"
    job.connect(members[0].agent)
    job.run()
    assert job.last.cause != "restored" and nonces(job.members)[:2] == nonces(members) and len(job.running) == 3


# --- the store ---------------------------------------------------------------------------------------------------------


def forming_job() -> tuple[SimulatedJob, list[SimulatedWorker]]:
    """A generation of three after a loss, complete, whose durability is still under way."""
    job, members = running_job(4)
    job.instant_store = False
    job.kill(members[3])
    for _ in range(3):
        job.deliver_everything()
        job.act(restart=False)
    assert job.formed.generation == 2 and job.answers and not job.running
    return job, members[:3]


def test_members_are_released_only_when_their_generation_is_durable() -> None:
    job, members = forming_job()
    assert not [m for m in members[0].agent.to_agent if isinstance(m, Release)]
    job.answer_from_store()
    assert [m for m in members[0].agent.to_agent if isinstance(m, Release)] == [Release(2)]


def test_a_loss_while_the_store_is_asked_is_followed_by_a_generation_that_names_the_new_one() -> None:
    job, members = forming_job()
    job.kill(members[0])
    job.deliver_everything()
    assert job.newest == 2
    job.answer_from_store()
    assert job.newest == 3 and job.last.formed == 2 and nonces(job.members) == nonces(members[1:])
    job.run(restart=False)
    assert len(job.running) == 2


def test_an_answer_of_the_store_that_comes_twice_does_nothing() -> None:
    job, _members = forming_job()
    job.answer_from_store()
    assert job.machine.persisted(2, job.now) == []
    assert job.machine.persisted(1, job.now) == []


def test_a_refused_generation_is_followed_by_one_that_knows_what_the_store_holds() -> None:
    machine = Membership(JobSpec(1, 2), secret=lambda: "s")
    machine.said("a", Hello("a", "host", "host:1"), 0.0)
    machine.said("a", Started("w", 0), 0.0)
    machine.said("a", Ready("w"), 0.0)
    machine.tick(0.06)
    from elastic_launch.rendezvous.messages import Formed

    assert Persist(1, ("w",), 0) in machine.said("a", Formed("w", 1), 0.1)
    machine.persist_refused(1, FormedGeneration(7, ("x", "y")), 0.1)
    assert machine.snapshot()["formed"] == 7 and machine.state == "lost"


def test_a_store_that_lost_the_job_fails_it() -> None:
    job, _members = forming_job()
    job.answers.clear()
    job.carry_out(job.machine.persist_refused(2, None, job.now))
    assert job.failed is not None and "the store has lost generation 1" in job.failed.reason


# --- a server that starts anew -------------------------------------------------------------------------------------------


def claim(nonce: str, rank: int, formed: int = 5) -> WorkerClaim:
    return WorkerClaim(nonce, rank, "member", formed, formed)


def restarted_server() -> Membership:
    return Membership(JobSpec(1, 4), formed=FormedGeneration(5, ("w0", "w1")), secret=lambda: "s")


def announced(effects: list[object]) -> list[Announce]:
    return [e.message for e in effects if isinstance(e, Tell) and isinstance(e.message, Announce)]


def test_a_new_server_finds_the_ring_intact() -> None:
    machine = restarted_server()
    machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)], announced=5), 0.0)
    machine.said("b", Hello("b", "host-b", "host-b:1", workers=[claim("w1", 0)], announced=5), 0.5)
    machine.tick(1.0)
    assert machine.state == "running" and machine.snapshot()["world_size"] == 2


def test_a_new_server_gives_up_members_that_do_not_show_up() -> None:
    machine = restarted_server()
    machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)], announced=5), 0.0)
    now, effects = 0.0, []
    while not announced(effects):
        deadline = machine.next_deadline()
        assert deadline is not None and deadline < 10.0
        now = min(deadline, now + 0.9)
        machine.said("a", Beat(), now)
        effects = machine.tick(now)
    assert now == pytest.approx(1.0 + 3.0 + 2.0), "suspicion, lease, and the pause of an agent that looks for a server"
    assert announced(effects)[0].generation == 6 and announced(effects)[0].abort


def test_a_new_server_forms_anew_when_a_member_has_left_the_ring() -> None:
    machine = restarted_server()
    machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)], announced=5), 0.0)
    ready = WorkerClaim("w1", 0, "ready", lineage=5, formed=5)
    effects = machine.said("b", Hello("b", "host-b", "host-b:1", workers=[ready], announced=5), 0.5)
    assert announced(effects)[0].world_size == 2 and announced(effects)[0].abort


def test_a_member_that_comes_back_after_the_others_were_let_go_does_not_wait_for_them() -> None:
    machine = restarted_server()
    leaving = WorkerClaim("w1", 0, "member", lineage=5, formed=5, leaving=True)
    machine.said("b", Hello("b", "host-b", "host-b:1", workers=[leaving], announced=5), 0.0)
    now, effects = 0.0, []
    while now < 8.0:
        now += 0.5
        machine.said("b", Beat(), now)
        effects += machine.tick(now)
    assert [e for e in effects if isinstance(e, Tell) and e.message == Released("w1", last_holder=True)]
    machine.said("b", Exited("w1", 0, "left", local_rank=0), now)
    machine.closed("b", now)
    effects = machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)], announced=5), now)
    assert [(a.generation, a.world_size, a.abort) for a in announced(effects)] == [(6, 1, True)]


def test_a_new_server_never_announces_a_number_that_was_used() -> None:
    machine = restarted_server()
    machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)], announced=8), 0.0)
    effects = machine.said("b", Hello("b", "host-b", "host-b:1", workers=[claim("w1", 0)], announced=7), 0.1)
    numbers = [a.generation for a in announced(effects)]
    assert all(number > 8 for number in numbers)
    assert machine.snapshot()["generation"] > 8


def test_a_server_without_the_store_of_the_job_refuses_its_members() -> None:
    machine = Membership(JobSpec(1, 4))
    effects = machine.said("a", Hello("a", "host-a", "host-a:1", workers=[claim("w0", 0)]), 0.0)
    assert [e for e in effects if isinstance(e, Tell) and isinstance(e.message, Refused)]


def test_late_arrivals_at_a_failed_job_are_told_why() -> None:
    job, members = running_job(1)
    job.kill(members[0], 3, step=5)
    job.run()
    effects = job.machine.said("late", Hello("late", "host", "host:1"), job.now)
    assert [e.message for e in effects if isinstance(e, Tell) and isinstance(e.message, Failed)] == [job.failed]
    assert job.machine.next_deadline() is None and not [e for e in effects if isinstance(e, PersistDone)]


def test_a_pod_that_is_gone_takes_every_agent_in_it_along_and_lets_none_back() -> None:
    machine, now = Membership(JobSpec(1, 4)), 0.0
    for name, pod in (("a", "pod-1"), ("b", "pod-1"), ("c", "pod-2")):
        machine.said(name, Hello(name, "host", "host:1", pod=pod), now)
        machine.said(name, Started(f"worker-{name}", 0), now)
    machine.gone("pod-1", "deleted", now)
    assert [worker["worker"] for worker in machine.snapshot()["workers"]] == ["worker-c"]
    effects = machine.said("d", Hello("d", "host", "host:1", pod="pod-1"), now)
    assert [e.message for e in effects if isinstance(e, Tell)] == [Refused("this pod was reported as gone")]
    effects = machine.said("e", Hello("e", "host", "host:1", pod="pod-3"), now)
    assert not [e for e in effects if isinstance(e, Tell) and isinstance(e.message, Refused)], (
        "the name is another pod's"
    )


def test_a_pod_is_drained_by_its_id_and_leaves_others_of_its_name_alone() -> None:
    machine, now = Membership(JobSpec(1, 4)), 0.0
    for name, pod in (("a", "pod-1"), ("b", "pod-2")):
        machine.said(name, Hello(name, "the-same-name", "host:1", pod=pod), now)
        machine.said(name, Started(f"worker-{name}", 0), now)
    effects = machine.drain_host("pod-2", now)
    assert {e.agent for e in effects if isinstance(e, Tell)} == {"b"}
    assert {worker["pod"]: worker["leaving"] for worker in machine.snapshot()["workers"]}["pod-1"] is False
    with pytest.raises(KeyError):
        machine.drain_host("pod-3", now)


# --- scripts that are started again -----------------------------------------------------------------------------------


def test_a_script_s_crash_starts_the_same_members_again_at_once() -> None:
    job, members = scripts(3)
    job.crash_script(members[1])
    before = job.now
    job.deliver_everything()
    assert job.now == before and job.last.generation == 2 and job.last.abort and job.last.cause == "broken"
    assert job.last.reason == "worker 1 on host-0 exited with code 1"
    job.run()
    assert job.members == members and len(job.running) == 3
    assert job.machine.snapshot()["crashes"] == 1


def test_the_crashes_that_follow_from_one_cost_nothing() -> None:
    job, members = scripts(3, max_restarts=1)
    for worker in members:
        job.crash_script(worker)
    job.run()
    assert job.state == "running" and job.newest == 2 and job.machine.snapshot()["crashes"] == 1


def test_crashes_of_scripts_beyond_the_budget_fail_the_job_with_the_first_one_s_last_lines() -> None:
    job, members = scripts(2, max_restarts=1)
    job.crash_script(members[0])
    job.run()
    job.crash_script(members[1], 7, "the cause")
    job.crash_script(members[0], 1, "a consequence")
    job.run()
    assert job.failed is not None and job.failed.code == 7 and job.failed.tail == "the cause"
    assert "2 crashes, 1 restarts are allowed" in job.failed.reason


def test_a_crash_in_a_generation_that_is_over_is_no_news() -> None:
    job, members = scripts(2)
    job.send(members[0].agent, Crashed(members[0].nonce, 1, 1))
    job.run()
    job.send(members[1].agent, Crashed(members[1].nonce, 1, 1))
    job.run()
    assert job.newest == 2 and job.machine.snapshot()["crashes"] == 1


@pytest.mark.parametrize("heard_first", ["the loss", "the failure"])
def test_scripts_that_fail_because_an_agent_is_lost_cost_nothing(heard_first: str) -> None:
    job, members = scripts_of_agents(3, max_restarts=0)
    lost = members[1].agent
    if heard_first == "the loss":
        job.kill_agent(lost)
    for worker in (members[0], members[2]):
        job.crash_script(worker)
    job.deliver_everything()
    if heard_first == "the failure":
        job.advance(0.05)
        job.kill_agent(lost)
    job.run()
    assert job.state == "running" and job.machine.snapshot()["crashes"] == 0
    assert job.last.cause == "lost" and job.members == [members[0], members[2]] and len(job.running) == 2


def test_a_script_that_fails_while_all_agents_are_there_is_a_crash() -> None:
    job, members = scripts_of_agents(3, max_restarts=1)
    job.crash_script(members[1], 7)
    job.run()
    assert job.newest == 2 and job.members == members and job.machine.snapshot()["crashes"] == 1
    job.crash_script(members[1], 7)
    job.run()
    assert job.failed is not None and job.failed.code == 7
    assert "2 crashes, 1 restarts are allowed" in job.failed.reason


def test_a_crash_is_counted_once_however_long_its_generation_waits_for_the_next() -> None:
    job, members = scripts_of_agents(2, max_restarts=1, minimum=2)
    job.crash_script(members[0])
    job.deliver_everything()
    job.advance(0.2)
    assert job.machine.snapshot()["crashes"] == 1
    job.advance(5.0)
    job.run()
    assert job.state == "running" and job.machine.snapshot()["crashes"] == 1


def scripts_of_agents(count: int, max_restarts: int, minimum: int = 1) -> tuple[SimulatedJob, list[SimulatedWorker]]:
    job = SimulatedJob(JobSpec(minimum, 4, max_restarts))
    for _ in range(count):
        job.add_agent()
    job.run()
    assert len(job.members) == count
    return job, job.members


def scripts(count: int, max_restarts: int = 3) -> tuple[SimulatedJob, list[SimulatedWorker]]:
    job = SimulatedJob(JobSpec(1, 4, max_restarts))
    job.add_agent(count)
    job.run()
    return job, job.members
