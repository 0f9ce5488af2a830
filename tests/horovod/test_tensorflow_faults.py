"""Elastic scripts for TensorFlow 2 and for Keras that say `import horovod`, unchanged, while workers are killed and come."""

from __future__ import annotations

import pytest

from .jobs import PATIENCE, HorovodLab


@pytest.mark.soak
def test_a_tape_goes_on_when_a_worker_is_killed_and_takes_in_the_next_one(lab: HorovodLab) -> None:
    command = lab.run("tensorflow2_elastic.py", "-np", "2", "--min-np", "1", open_ended=True)
    lab.wait_for_total(12)
    [victim] = lab.kill_at(0)
    lab.wait_for_size(1)
    lab.wait_for_size(2, 90)
    lab.finish()
    assert command.wait(PATIENCE) == 0, command.output
    ends = lab.ends(2)
    assert all(end["accuracy"] > 0.8 and not end["torch"] for end in ends), ends
    [survivor] = {entry["pid"] for entry in lab.journal("step", total=1)} - {victim}
    assert survivor in {end["pid"] for end in ends}, "the survivor was started again"
    entered = [entry["total"] for entry in lab.journal("entered") if entry["total"] > 0]
    assert entered and all(total % 5 == 0 for total in entered), "not at a commit"


def test_fit_goes_on_when_a_worker_is_killed(lab: HorovodLab) -> None:
    note = lab.folder / "hold-batch"
    command = lab.run("keras_elastic.py", "-np", "2", "--min-np", "1", epochs=3)
    lab.wait_for_entry("epoch", epoch=1)
    note.touch()
    lab.wait(lambda: len(lab.journal("held")) == 2, 60, "both workers between two batches")
    lab.kill_at(1)
    note.unlink()
    lab.wait_for_size(1)
    assert command.wait(PATIENCE) == 0, command.output
    ends = lab.journal("end")
    assert ends and all(end["total"] == 3 and end["accuracy"] > 0.8 and not end["torch"] for end in ends), ends
    averaged = {entry["rank"]: entry["accuracy"] for entry in lab.journal("epoch", epoch=0)}
    assert len(averaged) == 2 and averaged[0] == averaged[1], "the metrics are not averaged"


@pytest.mark.soak
def test_fit_takes_in_a_worker_that_comes(lab: HorovodLab) -> None:
    first = lab.run("keras_elastic.py", "--min", "1", "--max", "2", "--nproc-per-node", "1", epochs=40)
    lab.wait_for_entry("epoch", epoch=1)
    second = lab.run("keras_elastic.py", "--rendezvous", first.url, epochs=40)
    assert first.wait(PATIENCE) == 0 and second.wait(PATIENCE) == 0, first.output + second.output
    assert any(entry["size"] == 2 and entry["rank"] == 1 and entry["epoch"] > 0 for entry in lab.journal("entered"))
    lab.ends(2)
