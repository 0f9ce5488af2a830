"""Starting fits with a journal, and comparing the course of one with that of another."""

from __future__ import annotations

import math
from typing import Any

from ..system.journals import Entry, JournalFolder
from ..system.launching import Command, Lab

START = 120  # seconds: TensorFlow takes long to import where cores are few


def launch(lab: Lab, script: str, most: int, *more: str, **options: Any) -> Command:
    flags = ("--min", "1", "--max", str(most), "--max-restarts", "1000", *more)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return lab.launch(*flags, script=script, environment=quiet, pause=0.05, open_ended=True, **options)


def assert_same_course(lab: Lab, alone: JournalFolder, tolerance: float, names: list[str]) -> list[Entry]:
    """The named values of each step, and the History, are those of `alone`; returns the ends of those who finished."""
    ends = lab.journal("end")
    assert ends, "nobody finished"
    (expected,) = alone.journal("end")
    for end in ends:
        for name in ("samples", "epochs", "seen", "steps", "epoch"):
            assert end[name] == expected[name], name
        assert end["history"].keys() == expected["history"].keys()
        for name, values in expected["history"].items():
            assert_close(end["history"][name], values, tolerance, name)
        assert_close([end["weights"], end["lr"]], [expected["weights"], expected["lr"]], tolerance, "the end")
        assert end["history"] == ends[0]["history"], "the History is the same on all members"
    by_step = {entry["step"]: entry for entry in alone.journal("step")}
    assert {entry["step"] for entry in lab.journal("step")} == set(by_step)
    for entry in lab.journal("step"):
        for name in names:
            assert_close([entry[name]], [by_step[entry["step"]][name]], tolerance, f"{name} of step {entry['step']}")
    return ends


def assert_close(found: list[float], expected: list[float], tolerance: float, what: str) -> None:
    assert len(found) == len(expected), what
    for a, b in zip(found, expected, strict=True):
        assert math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance), f"{what}: {a} and {b}"
