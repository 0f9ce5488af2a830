"""What is started, changed and let go of, for any hosts that are listed and agents that are there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launch.launcher.hosts.listing import Host
from elastic_launch.launcher.hosts.plan import Leave, Present, Resize, Start, allot, plan, room

HOSTS = [Host("h1", 2), Host("h2", 2), Host("h3", 2)]


def test_agents_are_started_on_listed_hosts_up_to_the_most_workers() -> None:
    assert plan(HOSTS, (), {}, 16) == [Start("h1", 2), Start("h2", 2), Start("h3", 2)]
    assert plan(HOSTS, (), {}, 3) == [Start("h1", 2), Start("h2", 1)]


def test_who_is_there_keeps_its_slots_before_newcomers_get_any() -> None:
    assert plan(HOSTS, (), {"h3": Present(2)}, 3) == [Start("h1", 1)]
    assert plan(HOSTS, (), {"h3": Present(2), "h2": Present(1)}, 3) == []


def test_a_host_that_is_not_listed_or_barred_is_let_go() -> None:
    assert plan(HOSTS[:1], (), {"h1": Present(2), "h2": Present(2)}, 16) == [Leave("h2")]
    assert plan(HOSTS, ("h2",), {"h1": Present(2), "h2": Present(2)}, 4) == [Leave("h2"), Start("h3", 2)]


def test_a_host_that_is_leaving_is_not_started_until_it_has_left() -> None:
    assert plan(HOSTS[:1], (), {"h1": Present(2, leaving=True)}, 16) == []
    assert plan([], (), {"h1": Present(2, leaving=True)}, 16) == []


def test_a_host_may_get_more_or_fewer_slots() -> None:
    assert plan([Host("h1", 3)], (), {"h1": Present(2)}, 16) == [Resize("h1", 3)]
    assert plan([Host("h1", 1), Host("h2", 4)], (), {"h1": Present(2)}, 2) == [Resize("h1", 1), Start("h2", 1)]


def test_the_room_is_that_of_the_hosts_that_can_be_used() -> None:
    assert room(HOSTS, {"h2", "h9"}) == 4


NAMES = st.sampled_from(["h1", "h2", "h3", "h4", "h5"])
LISTED = st.dictionaries(NAMES, st.integers(1, 4)).map(lambda slots: [Host(*item) for item in slots.items()])
PRESENT = st.dictionaries(NAMES, st.builds(Present, st.integers(1, 4), st.booleans()))


@given(LISTED, st.sets(NAMES), PRESENT, st.integers(1, 12))
def test_after_a_plan_was_carried_out_nothing_is_left_to_do_and_nobody_has_too_much(
    listed: list[Host], barred: set[str], present: dict[str, Present], most: int
) -> None:
    after = dict(present)
    for action in plan(listed, barred, present, most):
        if isinstance(action, Leave):
            after[action.host] = Present(after[action.host].slots, leaving=True)
        else:
            assert isinstance(action, Start) == (action.host not in present)
            after[action.host] = Present(action.slots)
    assert plan(listed, barred, after, most) == []
    slots = {host.name: host.slots for host in listed if host.name not in barred}
    staying = {name: agent.slots for name, agent in after.items() if not agent.leaving}
    assert sum(staying.values()) <= most
    assert all(count <= slots[name] for name, count in staying.items())
    if not any(agent.leaving for agent in present.values()):
        assert sum(staying.values()) == min(most, sum(slots.values()))
    assert sum(allot([host for host in listed if host.name in slots], present, most).values()) <= most
