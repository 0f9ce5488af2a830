"""Places of scripts: ranks of one host follow each other, whatever order the server has them in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from elastic_launch.launcher.restarting.environment import ScriptSettings, script_environment
from elastic_launch.launcher.restarting.world import Entry, Seat, seat

ENTRIES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=20, unique=True)


def seats(entries: list[Entry]) -> list[Seat]:
    return [seat(entries, place) for place in range(len(entries))]


@given(ENTRIES)
def test_seats_are_a_world_as_scripts_expect_it(pairs: list[tuple[int, int]]) -> None:
    entries = [Entry(f"agent-{agent}", slot) for agent, slot in pairs]
    found = seats(entries)
    assert sorted(one.rank for one in found) == list(range(len(entries)))
    assert {one.world_size for one in found} == {len(entries)}
    groups: dict[str, list[Seat]] = {}
    for entry, one in zip(entries, found, strict=True):
        groups.setdefault(entry.agent, []).append(one)
    assert sorted(members[0].group_rank for members in groups.values()) == list(range(len(groups)))
    for members in groups.values():
        members.sort(key=lambda one: one.rank)
        assert [one.local_rank for one in members] == list(range(len(members)))
        assert [one.rank for one in members] == list(range(members[0].rank, members[0].rank + len(members)))
        assert {one.local_world_size for one in members} == {len(members)}
        assert len({one.group_rank for one in members}) == 1
    first = next(one for one, entry in zip(found, entries, strict=True) if entry.agent == entries[0].agent)
    assert first.group_rank == 0, "whoever was there first keeps the first ranks"


def test_ranks_follow_node_ranks_whoever_comes_first_and_rank_0_is_where_the_store_is() -> None:
    entries = [
        Entry("b", 0, store="b:1", node=1), Entry("c", 0, node=2), Entry("a", 0, store="a:1", node=0), Entry("a", 1, node=0),
    ]  # fmt: skip
    found = seats(entries)
    assert [one.rank for one in found] == [2, 3, 0, 1]
    assert [one.group_rank for one in found] == [1, 2, 0, 0]
    assert {one.store for one in found} == {"a:1"}


def test_without_node_0_rank_0_is_where_the_store_is() -> None:
    found = seats([Entry("c", 0, store="c:1", node=2), Entry("d", 0), Entry("b", 0, node=1)])
    assert [one.rank for one in found] == [0, 2, 1]
    assert {one.store for one in found} == {"c:1"}


def test_roles_are_counted_apart() -> None:
    entries = [Entry("a", 0, "trainer"), Entry("b", 0, "reader"), Entry("a", 1, "trainer"), Entry("c", 0, "reader")]
    found = seats(entries)
    assert [one.role_rank for one in found] == [0, 0, 1, 1]
    assert [one.role_world_size for one in found] == [2, 2, 2, 2]


def test_the_store_of_one_is_everybody_s() -> None:
    entries = [Entry("a", 0, store="[fd00::1]:29500", store_is_served=True), Entry("b", 0)]
    environ = script_environment({"PATH": "/bin"}, ScriptSettings("job"), seats(entries)[1], 4, "/tmp/error")
    assert environ["MASTER_ADDR"] == "fd00::1" and environ["MASTER_PORT"] == "29500"
    assert environ["TORCHELASTIC_USE_AGENT_STORE"] == "True" and environ["TORCHELASTIC_RESTART_COUNT"] == "3"
    assert environ["PATH"] == "/bin"


def test_tensorflow_is_told_where_all_scripts_are_in_the_order_of_their_ranks() -> None:
    entries = [Entry("a", 0, address="a:1"), Entry("b", 0, address="[fd00::1]:5"), Entry("a", 1, address="a:2")]
    told = [
        json.loads(script_environment({}, ScriptSettings("job"), one, 1, "")["TF_CONFIG"]) for one in seats(entries)
    ]
    assert [one["task"] for one in told] == [{"type": "worker", "index": rank} for rank in (0, 2, 1)]
    assert {tuple(one["cluster"]["worker"]) for one in told} == {("a:1", "a:2", "[fd00::1]:5")}


def test_with_virtual_local_ranks_each_script_sees_one_device() -> None:
    entries = [Entry("a", slot) for slot in range(2)]
    settings = ScriptSettings("job", virtual_local_rank=True)
    made = [script_environment({"CUDA_VISIBLE_DEVICES": "4,7"}, settings, one, 1, "") for one in seats(entries)]
    assert [environ["CUDA_VISIBLE_DEVICES"] for environ in made] == ["4", "7"]
    assert {environ["LOCAL_RANK"] for environ in made} == {"0"}
