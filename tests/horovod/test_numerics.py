"""Every collective against numpy, and gradients through them, in real worlds of 3, 2 and 1 workers."""

from __future__ import annotations

from .jobs import PATIENCE, HorovodLab


def test_every_collective_gives_what_numpy_computes_in_worlds_of_3_2_and_1(lab: HorovodLab) -> None:
    command = lab.run("numerics.py", "--min", "1", "--max", "3")
    assert command.wait(PATIENCE) == 0, command.output
    assert not lab.journal("wrong"), lab.journal("wrong")[0]["what"]
    checked = [(entry["size"], entry["rank"]) for entry in lab.journal("checked")]
    assert sorted(checked) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
