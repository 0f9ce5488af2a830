"""Ranks as Horovod wants them: rank 0 holds the state, hosts stay together, a process on a full host keeps its GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launch.launcher.horovod.places import Entry, has_lost_the_state, place_of


def entries(*said: str) -> list[Entry]:
    """`a0` is slot 0 of agent a; `a0:3` has had the state since generation 3."""
    made = []
    for text in said:
        who, _, holds = text.partition(":")
        made.append(Entry(who[0], int(who[1:]), int(holds or 0)))
    return made


def numbers(*said: str) -> list[tuple[int, ...]]:
    """Of each: rank, local rank, local size, cross rank, cross size."""
    found = [place_of(entries(*said), index) for index in range(len(said))]
    return [(p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in found]


def test_ranks_of_a_host_follow_each_other() -> None:
    assert numbers("a1", "b0", "a0") == [(0, 1, 2, 0, 1), (2, 0, 1, 1, 2), (1, 0, 2, 0, 2)]


def test_rank_0_is_the_first_that_holds_the_newest_state_and_local_ranks_stay_with_the_slots() -> None:
    assert numbers("a0", "a1:2", "a2:2") == [(1, 0, 3, 0, 1), (0, 1, 3, 0, 1), (2, 2, 3, 0, 1)]
    assert numbers("a0:1", "b0:4", "a1:4") == [(1, 0, 2, 1, 2), (0, 0, 1, 0, 2), (2, 1, 2, 0, 1)]


SLOTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), min_size=1, max_size=9, unique=True)


@given(SLOTS, st.data())
def test_ranks_are_whole_in_the_ring_on_each_host_and_across_the_hosts(
    slots: list[tuple[str, int]], data: st.DataObject
) -> None:
    members = [Entry(agent, slot, data.draw(st.integers(0, 2))) for agent, slot in slots]
    places = [place_of(members, index) for index in range(len(members))]
    assert sorted(place.rank for place in places) == list(range(len(members)))
    first = next(member for member, place in zip(members, places, strict=True) if place.rank == 0)
    assert first.holds == max(member.holds for member in members)
    for agent in {member.agent for member in members}:
        mates = [place for member, place in zip(members, places, strict=True) if member.agent == agent]
        assert sorted(place.local_rank for place in mates) == list(range(len(mates)))
        assert {place.local_size for place in mates} == {len(mates)}
        ranks = sorted(place.rank for place in mates)
        assert ranks == list(range(ranks[0], ranks[0] + len(mates)))
    for local_rank in {place.local_rank for place in places}:
        across = [place for place in places if place.local_rank == local_rank]
        assert sorted(place.cross_rank for place in across) == list(range(len(across)))
        assert {place.cross_size for place in across} == {len(across)}


def test_a_job_whose_holders_are_all_gone_does_not_begin_anew_without_a_word() -> None:
    assert not has_lost_the_state([Entry("a", 0), Entry("a", 1)])
    assert not has_lost_the_state([Entry("a", 0, 0, True), Entry("a", 1, 3, True)])
    assert has_lost_the_state([Entry("a", 0, 0, True), Entry("a", 1)])
