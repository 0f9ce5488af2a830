"""What a server that begins to decide knows from the one before it, and how long it waits for whom."""

from __future__ import annotations

from elastic_launch.rendezvous.membership.effects import Confirm, Effect, Tell
from elastic_launch.rendezvous.membership.facts import Facts
from elastic_launch.rendezvous.membership.machine import Membership
from elastic_launch.rendezvous.membership.members import FormedGeneration, Timing
from elastic_launch.rendezvous.messages import (
    Announce,
    Beat,
    Broken,
    Drain,
    Exited,
    Failed,
    Hello,
    JobSpec,
    Ready,
    Registered,
    Restart,
    Started,
    ToAgent,
    Welcome,
    WorkerClaim,
)

SPEC = JobSpec(1, 4, max_restarts=2)
TERM = 7


def taken_over(**facts: object) -> Membership:
    known = Facts(SPEC, SPEC.min, SPEC.max, **facts)  # type: ignore[arg-type]
    return Membership(SPEC, Timing(), FormedGeneration(5, ("w0", "w1")), facts=known, term=TERM, secret=lambda: "s")


def hello(name: str, worker: str, **claim: int) -> Hello:
    claims = [WorkerClaim(worker, 0, "member", lineage=5, formed=claim.get("formed", 5))] if worker else []
    return Hello(name, f"host-{name}", f"host-{name}:1", SPEC, claims, claim.get("announced", 5))


def told(effects: list[Effect], kind: type[ToAgent]) -> list[ToAgent]:
    return [each.message for each in effects if isinstance(each, Tell) and isinstance(each.message, kind)]


def test_agents_are_told_the_term() -> None:
    (welcome,) = told(taken_over().said("a", hello("a", "w0"), 0.0), Welcome)
    assert isinstance(welcome, Welcome) and (welcome.term, welcome.formed) == (TERM, 5)


def test_a_loss_that_is_certain_waits_for_members_that_have_not_been_heard_yet() -> None:
    machine = taken_over()
    crashed = Hello("a", "host-a", "host-a:1", SPEC, [], 5)
    effects = machine.said("a", crashed, 0.0)
    effects += machine.said("a", Exited("w0", 1, "crash", local_rank=0), 0.1)
    assert not told(effects, Announce), "w1 would have been left behind, with the state that it holds"
    (cut,) = told(machine.said("b", hello("b", "w1"), 0.5), Announce)
    assert isinstance(cut, Announce) and (cut.world_size, cut.abort) == (1, True)


def test_a_ring_error_does_not_make_a_loss_of_who_has_not_been_heard_yet() -> None:
    machine = taken_over()
    machine.said("a", hello("a", "w0"), 0.0)
    assert not told(machine.said("a", Broken("w0", 5), 0.1), Announce)
    machine.tick(2.0)
    effects = machine.said("b", hello("b", "w1"), 2.1) + machine.tick(3.0)
    (cut,) = told(effects, Announce)[:1]
    assert isinstance(cut, Announce) and cut.world_size == 2


def test_a_generation_that_the_old_server_had_announced_waits_for_everybody_and_is_followed_by_another() -> None:
    machine = taken_over()
    assert not told(machine.said("a", hello("a", "w0", announced=6, formed=6), 0.0), Announce)
    cuts = told(machine.said("b", hello("b", "w1", announced=6), 0.2), Announce)
    assert cuts and all(isinstance(cut, Announce) and cut.generation == 7 and cut.world_size == 2 for cut in cuts)


def test_min_timeout_does_not_run_while_members_may_still_come() -> None:
    short = JobSpec(2, 4, min_timeout=1.0)
    machine = Membership(short, Timing(), FormedGeneration(5, ("w0", "w1")), facts=Facts(short, 2, 4), term=TERM)
    machine.said("a", Hello("a", "host-a", "a:1", short, [WorkerClaim("w0", 0, "member", 5, 5)], 5), 0.0)
    machine.said("a", Beat(), 2.0)
    machine.tick(3.0)
    machine.said("b", Hello("b", "host-b", "b:1", short, [WorkerClaim("w1", 0, "member", 5, 5)], 5), 3.1)
    assert machine.state == "running"


def test_crashes_count_on_where_they_were() -> None:
    machine = taken_over(crashes=2)
    machine.said("a", hello("a", "w0"), 0.0)
    machine.said("b", hello("b", "w1"), 0.0)
    effects = machine.said("a", Exited("w0", 1, "crash", local_rank=0), 0.5)
    assert told(effects, Failed) and machine.facts.crashes == 3


def test_who_was_asked_to_leave_is_asked_again() -> None:
    machine = taken_over(drained=["w1"])
    machine.said("a", hello("a", "w0"), 0.0)
    effects = machine.said("b", hello("b", "w1"), 0.1)
    assert told(effects, Drain) == [Drain("w1")]


def test_a_host_that_was_drained_stays_so() -> None:
    machine = taken_over(drained_agents=["b"])
    machine.said("a", hello("a", "w0"), 0.0)
    machine.said("b", hello("b", "w1"), 0.1)
    assert told(machine.said("b", Started("w2", 1), 0.2), Drain) == [Drain("w2")]
    assert machine.facts.drained_agents == ["b"]


def test_slots_that_a_lower_max_has_emptied_are_filled_once_there_is_room() -> None:
    known = Facts(SPEC, 1, 2, vacated=[("b", 1)])
    machine = Membership(SPEC, Timing(), FormedGeneration(5, ("w0", "w1")), facts=known, term=TERM)
    machine.said("a", hello("a", "w0"), 0.0)
    assert not told(machine.said("b", hello("b", "w1"), 0.1), Restart)
    assert told(machine.resize(1, 3, 0.2), Restart) == [Restart(1)]
    assert machine.facts.vacated == []


def test_min_and_max_are_what_they_were_changed_to_and_agents_say_what_they_always_said() -> None:
    machine = Membership(
        SPEC, Timing(), FormedGeneration(5, ("w0", "w1")), facts=Facts(SPEC, 1, 2), term=TERM, secret=lambda: "s"
    )
    assert told(machine.said("a", hello("a", "w0"), 0.0), Welcome)
    machine.said("b", hello("b", "w1"), 0.0)
    machine.said("c", hello("c", ""), 0.1)
    for message in (Started("w2", 0), Registered("w2"), Ready("w2")):
        machine.said("c", message, 0.2)
    machine.confirmed(0.3)
    assert not told(machine.tick(1.0), Announce), "two is all that there may be"


def test_a_failed_job_stays_failed() -> None:
    machine = taken_over(failed=Failed(3, "because"))
    assert told(machine.said("late", hello("late", ""), 0.0), Failed) == [Failed(3, "because")]


def test_a_planned_change_waits_for_a_word_of_the_store_and_a_loss_does_not() -> None:
    machine = taken_over()
    machine.said("a", hello("a", "w0"), 0.0)
    machine.said("b", hello("b", "w1"), 0.0)
    machine.said("c", hello("c", ""), 0.1)
    effects: list[Effect] = []
    for message in (Started("w2", 0), Registered("w2"), Ready("w2")):
        effects += machine.said("c", message, 0.2)
    effects += machine.tick(1.0)
    assert [each for each in effects if isinstance(each, Confirm)] == [Confirm()]
    assert not told(effects, Announce)
    assert told(machine.confirmed(2.0), Announce)
    losing = machine.said("a", Exited("w0", 1, "crash", local_rank=0), 2.1)
    assert told(losing, Announce), "its ring is broken: there is nothing to go on with"
