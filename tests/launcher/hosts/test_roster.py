"""When a host that failed is used again, and when it counts as failed at all."""

from __future__ import annotations

import math

import pytest

from elastic_launch.launcher.hosts.blacklist import Blacklist, Cooldown
from elastic_launch.launcher.hosts.listing import Host
from elastic_launch.launcher.hosts.roster import Roster

HOSTS = [Host("h1", 1), Host("h2", 1)]


def roster(cooldown: Cooldown | None = None) -> Roster:
    """Hosts have 30 s to start; all chances are even."""
    made = Roster(cooldown, lambda: 0.5, 30.0)
    made.take_list(HOSTS, 0.0)
    return made


@pytest.mark.parametrize(
    ("failures", "chance", "delay"),
    [(1, 0.0, 20.0), (1, 1.0, 30.0), (2, 0.5, 45.0), (3, 0.0, 80.0), (4, 0.0, 100.0), (500, 1.0, 100.0)],
)
def test_a_cooldown_doubles_with_each_failure_up_to_its_limit(failures: int, chance: float, delay: float) -> None:
    assert Cooldown(10.0, 100.0).delay(failures, chance) == delay


def test_a_host_is_used_again_after_its_cooldown_which_grows() -> None:
    blacklist = Blacklist(Cooldown(10.0, 100.0), lambda: 0.0)
    assert not blacklist.holds("h1", 0.0)
    assert blacklist.add("h1", 0.0) == 20.0
    assert (blacklist.holds("h1", 19.9), blacklist.holds("h1", 20.0)) == (True, False)
    assert blacklist.add("h1", 50.0) == 40.0
    assert (blacklist.holds("h1", 89.9), blacklist.holds("h1", 90.0)) == (True, False)
    assert not blacklist.holds("h2", 55.0)
    assert not blacklist.holds_for_good("h1")


def test_without_a_cooldown_it_is_not_used_again() -> None:
    blacklist = Blacklist(None, lambda: 0.0)
    assert blacklist.add("h1", 0.0) == math.inf
    assert blacklist.holds("h1", 1e9)
    assert blacklist.holds_for_good("h1")


def test_a_failure_is_judged_at_the_next_list() -> None:
    hosts = roster()
    hosts.failed("h1", "its agent has ended", 1.0, unreached=False)
    assert hosts.barred(1.0) == {"h1"}
    assert hosts.lost_for_good() == set()
    (said,) = hosts.take_list(HOSTS, 2.0)
    assert said.startswith("host h1 has failed and is not used again")
    assert said.endswith("its agent has ended")
    assert hosts.take_list(HOSTS, 3.0) == []
    assert hosts.barred(1e9) == hosts.lost_for_good() == {"h1"}


def test_a_host_that_has_left_the_list_has_not_failed() -> None:
    hosts = roster()
    hosts.failed("h1", "its agent has ended", 1.0, unreached=False)
    assert hosts.take_list(HOSTS[1:], 2.0) == []
    assert hosts.take_list(HOSTS, 3.0) == []
    assert hosts.barred(3.0) == set()


def test_a_host_with_a_cooldown_comes_back() -> None:
    hosts = roster(Cooldown(10.0, 100.0))
    hosts.failed("h1", "gone", 1.0, unreached=False)
    assert hosts.take_list(HOSTS, 2.0) == ["host h1 has failed and is not used for 25.0 s: gone"]
    assert hosts.barred(26.9) == {"h1"}
    assert hosts.barred(27.0) == set()
    assert hosts.lost_for_good() == set()


def test_a_host_that_is_not_reached_is_tried_with_pauses_until_its_time_to_start_is_over() -> None:
    hosts = roster()
    now, tries = 0.0, []
    for _ in range(100):
        hosts.starting("h1", now)
        tries.append(now)
        hosts.failed("h1", "no route", now, unreached=True)
        if said := hosts.take_list(HOSTS, now):
            break
        assert hosts.barred(now) == {"h1"}
        while hosts.barred(now):
            now += 0.5
    assert said[0].endswith("no route")
    assert tries == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0]


def test_a_host_that_was_reached_once_is_not_tried_again_but_has_failed() -> None:
    hosts = roster()
    hosts.starting("h1", 0.0)
    assert hosts.is_starting("h1")
    hosts.joined("h1")
    assert not hosts.is_starting("h1")
    hosts.failed("h1", "broken", 1.0, unreached=True)
    assert len(hosts.take_list(HOSTS, 2.0)) == 1


def test_an_agent_is_late_when_its_time_to_start_is_over() -> None:
    hosts = roster()
    hosts.starting("h1", 10.0)
    hosts.starting("h1", 20.0)  # another try
    assert not hosts.is_late("h1", 40.0)
    assert hosts.is_late("h1", 40.1)
    assert not hosts.is_late("h2", 1e9)
    hosts.joined("h1")
    assert not hosts.is_late("h1", 1e9)


def test_a_host_whose_agent_was_drained_there_is_left_alone_until_it_was_off_the_list() -> None:
    hosts = roster()
    hosts.left("h1")
    hosts.take_list(HOSTS, 1.0)
    assert hosts.barred(1e9) == hosts.lost_for_good() == {"h1"}
    hosts.take_list(HOSTS[1:], 2.0)
    hosts.take_list(HOSTS, 3.0)
    assert hosts.barred(3.0) == hosts.lost_for_good() == set()
