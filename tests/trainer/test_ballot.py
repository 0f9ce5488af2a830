"""The vote's vector: decisions and exact means."""

from __future__ import annotations

import math

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.trainer.ballot import MAX_METRICS, Ballot, join_ballots


def total(*ballots: Ballot) -> Ballot:
    return Ballot.from_bytes(join_ballots([ballot.to_bytes() for ballot in ballots]))


def test_one_wish_for_a_change_or_a_stop_is_everybodys() -> None:
    both = total(Ballot.cast(True, False, {}), Ballot.cast(False, False, {}))
    assert both.change_wanted and not both.stop_wanted
    assert total(Ballot.cast(False, False, {}), Ballot.cast(False, True, {})).stop_wanted


def test_metrics_are_means_over_samples_not_over_members() -> None:
    many = Ballot.cast(False, False, {"loss": (30 * 1.0, 30.0), "accuracy": (30 * 0.5, 30.0)})
    few = Ballot.cast(False, False, {"loss": (10 * 5.0, 10.0), "accuracy": (10 * 1.0, 10.0)})
    assert total(many, few).means(["accuracy", "loss"]) == {"accuracy": 0.625, "loss": 2.0}


def test_a_metric_without_samples_is_not_a_number() -> None:
    assert math.isnan(Ballot.cast(False, False, {"loss": (0.0, 0.0)}).means(["loss"])["loss"])


@pytest.mark.parametrize("others", [{}, {"lost": (1.0, 1.0)}, {"loss": (1.0, 1.0), "more": (1.0, 1.0)}])
def test_members_that_log_other_names_are_told_on_every_member(others: dict[str, tuple[float, float]]) -> None:
    ballots = [Ballot.cast(False, False, {"loss": (1.0, 1.0)}) for _ in range(3)] + [Ballot.cast(False, False, others)]
    for names in (["loss"], sorted(others)):
        with pytest.raises(UsageError, match="every member must log the same names"):
            total(*ballots).means(names)


def test_a_member_that_was_not_there_when_the_others_logged_abstains() -> None:
    logged = [Ballot.cast(False, False, {"loss": (3.0, 1.0)}), Ballot.cast(False, False, {"loss": (5.0, 1.0)})]
    joiner = Ballot.cast(False, False, {}, abstains=True)
    assert total(*logged, joiner).means(["loss"]) == {"loss": 4.0}
    with pytest.raises(UsageError, match="every member must log the same names"):
        total(*logged, joiner, Ballot.cast(False, False, {})).means(["loss"])


def test_more_metrics_than_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=f"at most {MAX_METRICS}"):
        Ballot.cast(False, False, {str(index): (0.0, 1.0) for index in range(MAX_METRICS + 1)})


def test_members_with_other_learning_rates_are_told_on_every_member() -> None:
    ballots = [Ballot.cast(False, False, {}, [0.1, 0.2]), Ballot.cast(False, False, {}, [0.1, 0.2])]
    total(*ballots).check_learning_rates()
    with pytest.raises(UsageError, match="inside the block"):
        total(*ballots, Ballot.cast(False, False, {}, [0.1, 0.1])).check_learning_rates()
