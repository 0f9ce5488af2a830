"""A fit whose workers are killed and come back: its ledger, its losses and its History are those of one undisturbed worker."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from ..system.conftest import Undisturbed
from ..system.journals import Entry
from ..system.launching import Lab
from .checks import START, assert_same_course, launch

SCRIPT = str(Path(__file__).parent / "scripts" / "ledger.py")


def assert_exact(lab: Lab, undisturbed: Undisturbed, *flags: str, tolerance: float = 1e-9) -> list[Entry]:
    """The ledger, and every logged value of every step and epoch; returns the ends of those who finished."""
    ends = lab.journal("end")
    assert ends, "nobody finished"
    for end in ends:
        assert end["counts"] == [-float(end["epochs"])], end
    alone = undisturbed("--epochs", str(ends[0]["epochs"]), *flags, script=SCRIPT)
    return assert_same_course(lab, alone, tolerance, ["loss", "value_loss", "value_mae", "entry_loss", "entry_seen"])


def test_one_of_three_is_killed_and_another_takes_its_place(lab: Lab, undisturbed: Undisturbed) -> None:
    agent = launch(lab, SCRIPT, 3)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.kill_rank(0)
    lab.wait_for_world(2)
    lab.wait_for_steps(3)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0, agent.output
    ends = assert_exact(lab, undisturbed)
    assert [end["frameworks"] for end in ends] == [["tensorflow"]] * 3


def test_one_worker_becomes_two_and_one_and_two_again(lab: Lab, undisturbed: Undisturbed) -> None:
    """By joins and a drain, on a data set that shuffles in each epoch anew: who joins finds its place in that order."""
    first = launch(lab, SCRIPT, 2, "--nproc-per-node", "1", source="dataset")
    lab.wait_for_step(14, START)
    second = launch(lab, SCRIPT, 2, "--nproc-per-node", "1", "--rendezvous", first.url, source="dataset")
    lab.wait_for_world(2, START)
    lab.wait_for_steps(3)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.output
    lab.wait_for_world(1)
    third = launch(lab, SCRIPT, 2, "--nproc-per-node", "1", "--rendezvous", first.url, source="dataset")
    lab.wait_for_world(2, START)
    lab.wait_for_steps(3)
    lab.finish()
    assert [agent.wait() for agent in (first, third)] == [0, 0], first.output + third.output
    lab.assert_nothing_redone()
    assert len(assert_exact(lab, undisturbed, "--source", "dataset")) == 2
    assert len({entry["generation"] for entry in lab.journal("step")}) == 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_torch_backend_goes_on_in_the_same_way(
    lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    churn(lab)
    assert_exact(lab, undisturbed, tolerance=1e-4)  # Keras takes means in float32 there


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_batch_norm_and_dropout_leave_all_members_with_the_same_model(lab: Lab) -> None:
    churn(lab, norm=True)
    ends = lab.journal("end")
    assert len(ends) == 3 and len({(end["weights"], end["lr"], str(end["history"])) for end in ends}) == 1
    for end in ends:
        assert end["counts"] == [-float(end["epochs"])], end
    for step in {entry["step"] for entry in lab.journal("step")}:
        assert len({entry["loss"] for entry in lab.journal("step", step=step)}) == 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_validation_in_which_a_member_dies_is_done_again_by_the_others(lab: Lab, undisturbed: Undisturbed) -> None:
    agent = launch(lab, SCRIPT, 3)
    lab.wait_for_world(3, START)
    with lab.held("evaluation"):
        lab.kill_rank(1)
        lab.wait_for_text(agent, "SIGKILL")
    lab.wait_for_world(2)
    lab.wait_for_world(3, START)
    lab.finish()
    assert agent.wait() == 0, agent.output
    assert_exact(lab, undisturbed)


def churn(lab: Lab, **options: Any) -> None:
    agent = launch(lab, SCRIPT, 3, **options)
    lab.wait_for_world(3, START)
    for rank in (2, 0, 1):
        lab.wait_for_steps(3)
        lab.kill_rank(rank)
        lab.wait_for_world(2)
        lab.wait_for_steps(3)
        lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0, agent.output
