"""The Keras models of the zoo reach their accuracy, and the same losses when a worker is killed and another joins."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from ..system.conftest import Undisturbed
from ..system.launching import Lab
from .checks import START, assert_same_course, launch

SCRIPT = str(Path(__file__).parent / "scripts" / "zoo.py")


on_each_model = pytest.mark.parametrize(("model", "accuracy"), [("wide_and_deep", 0.94), ("digits_keras", 0.97)])


@on_each_model
def test_it_learns(job_of_its_own: None, model: str, accuracy: float) -> None:
    script = script_of(model)
    history = script.train(script.EPOCHS, script.GLOBAL_BATCH, script.LEARNING_RATE, 0)
    assert history.history["val_accuracy"][-1] >= accuracy


@pytest.mark.soak
@pytest.mark.timeout(300)
@on_each_model
def test_losses_stay_those_of_one_worker_when_one_of_three_is_killed(
    lab: Lab, undisturbed: Undisturbed, model: str, accuracy: float
) -> None:
    epochs = script_of(model).EPOCHS
    agent = launch(lab, SCRIPT, 3, model=model, epochs=epochs)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.kill_rank(1)
    lab.wait_for_world(2)
    lab.wait_for_steps(3)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0, agent.output
    ends = lab.journal("end")
    alone = undisturbed("--model", model, "--epochs", str(ends[0]["epochs"]), script=SCRIPT)
    # What rounding in float32 makes of a loss grows with the steps.
    assert len(assert_same_course(lab, alone, 2e-2, names=["loss", "accuracy"])) == 3
    assert ends[0]["history"]["val_accuracy"][epochs - 1] >= accuracy


def script_of(model: str) -> Any:
    pytest.importorskip("keras")
    return importlib.import_module(f"elastic_launch.model_zoo.{model}.train")
