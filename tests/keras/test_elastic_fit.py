"""A fit whose workers are killed and come back: its ledger, its losses and its History are those of one undisturbed worker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..system.conftest import Undisturbed
from ..system.journals import Entry
from ..system.launching import Command, Lab

SCRIPT = str(Path(__file__).parent / "scripts" / "ledger.py")
VALUES = ["loss", "value_loss", "value_mae", "entry_loss", "entry_seen"]
START = 120  # seconds: TensorFlow takes long to import where cores are few


def launch(lab: Lab, most: int, **options: Any) -> Command:
    flags = ("--min", "1", "--max", str(most), "--max-restarts", "1000")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return lab.launch(*flags, script=SCRIPT, environment=quiet, pause=0.05, open_ended=True, **options)


def assert_exact(lab: Lab, undisturbed: Undisturbed, *flags: str, tolerance: float = 1e-9) -> list[Entry]:
    """The ledger, and every logged value of every step and epoch; returns the ends of those who finished."""
    ends = lab.journal("end")
    assert ends, "nobody finished"
    alone = undisturbed("--epochs", str(ends[0]["epochs"]), *flags, script=SCRIPT)
    (expected,) = alone.journal("end")
    for end in ends:
        assert end["counts"] == [-float(end["epochs"])], end
        for name in ("samples", "epochs", "seen", "steps", "epoch"):
            assert end[name] == expected[name], name
        assert end["history"].keys() == expected["history"].keys()
        for name, values in expected["history"].items():
            assert_close(end["history"][name], values, tolerance, name)
        assert_close([end["weights"], end["lr"]], [expected["weights"], expected["lr"]], tolerance, "the end")
    by_step = {entry["step"]: entry for entry in alone.journal("step")}
    steps = lab.journal("step")
    assert {entry["step"] for entry in steps} == set(by_step)
    for entry in steps:
        for name in VALUES:
            assert_close([entry[name]], [by_step[entry["step"]][name]], tolerance, f"{name} of step {entry['step']}")
    return ends


def assert_close(found: list[float], expected: list[float], tolerance: float, what: str) -> None:
    assert len(found) == len(expected), what
    for a, b in zip(found, expected, strict=True):
        assert math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance), f"{what}: {a} and {b}"


def test_one_of_three_is_killed_and_another_takes_its_place(lab: Lab, undisturbed: Undisturbed) -> None:
    agent = launch(lab, 3)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.kill_rank(0)
    lab.wait_for_world(2)
    lab.wait_for_steps(3)
    lab.wait_for_world(3, START)
    lab.wait_for_steps(3)
    lab.finish()
    assert agent.wait() == 0, agent.output
    assert len(assert_exact(lab, undisturbed)) == 3
