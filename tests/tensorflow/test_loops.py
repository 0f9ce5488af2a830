"""A training loop of the user's own in TensorFlow, without torch, is as elastic as one in PyTorch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ..system.conftest import Undisturbed
from ..system.launching import Command, Lab

SCRIPT = str(Path(__file__).parent / "scripts" / "loop.py")
START = 150  # seconds: TensorFlow takes long to import where cores are few


def launch(lab: Lab, *flags: str, **options: Any) -> Command:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return lab.launch("--min", "1", *flags, script=SCRIPT, environment=quiet, pause=0.02, open_ended=True, **options)


def assert_as_undisturbed(lab: Lab, undisturbed: Undisturbed, tolerance: float = 1e-9) -> None:
    """The ledger, the losses, the weights and the evaluations are those of one worker that nobody disturbed."""
    epochs = lab.journal("end")[0]["epochs"]
    alone = undisturbed("--epochs", str(epochs), script=SCRIPT)
    expected = alone.losses()
    for end in lab.journal("end"):
        assert end["counts"] == [-float(epochs)], end
        assert (end["samples"], end["seen"]) == (epochs * 200, epochs), end
    partial = lab.finished_without_a_voter()
    losses = {step: loss for step, loss in lab.losses().items() if step not in partial and step - 1 not in partial}
    assert losses
    for step, loss in losses.items():
        assert math.isclose(loss, expected[step], rel_tol=tolerance), f"step {step}"
    for event, value in (("epoch", "weights"), ("evaluated", "loss")):
        undisturbed_values = {entry["epoch"]: entry[value] for entry in alone.journal(event)}
        for entry in lab.journal(event):
            assert math.isclose(entry[value], undisturbed_values[entry["epoch"]], rel_tol=tolerance), entry


def churn(lab: Lab, **options: Any) -> None:
    """Two workers, of which one is killed, and another takes its place; the first one is killed then."""
    agent = launch(lab, "--max", "2", "--max-restarts", "1000", **options)
    lab.wait_for_world(2, START)
    lab.wait_for_steps(5)
    lab.kill_rank(1)
    lab.wait_for_world(1)
    lab.wait_for_steps(3)
    lab.wait_for_world(2, START)
    lab.wait_for_steps(3)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    lab.finish()
    assert agent.wait() == 0, agent.output


@pytest.mark.timeout(400)
def test_a_compiled_step_survives_the_loss_of_each_of_its_workers(lab: Lab, undisturbed: Undisturbed) -> None:
    churn(lab)
    assert_as_undisturbed(lab, undisturbed)


@pytest.mark.soak
def test_an_eager_step_does_too(lab: Lab, undisturbed: Undisturbed) -> None:
    churn(lab, eager=True)
    assert_as_undisturbed(lab, undisturbed)
