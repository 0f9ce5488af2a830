"""The last resort: every holder of the state is gone at once, or the job is started again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .launching import Lab, wait_until_gone

MANY = ("--max-restarts", "1000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def wait_for_checkpoints(lab: Lab, folder: Path, count: int) -> list[Path]:
    def found() -> list[Path]:
        files = sorted(folder.glob("step-*.ckpt"))
        return files if len(files) >= count else []

    files: list[Path] = lab.wait(found, 60, f"{count} checkpoints")
    return files


def restored_from(lab: Lab) -> int:
    return int(lab.wait_for_entry("change", cause="restored")["step"])


def test_the_job_goes_on_from_the_newest_checkpoint_when_every_holder_is_gone(lab: Lab, folder: Path) -> None:
    agent = lab.launch(
        "--min", "1", "--max", "3", *MANY, open_ended=True, pause=0.02, checkpoint=folder, checkpoint_every=5
    )
    lab.wait_for_world(3)
    newest = int(wait_for_checkpoints(lab, folder, 2)[-1].stem.partition("-")[2])
    lab.kill_rank(0, 1, 2)
    step = restored_from(lab)
    assert newest <= step <= lab.step()
    lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0
    lab.assert_exact(members=3)
    assert "every holder of the state is gone: the checkpoint of step" in agent.output


def test_a_job_that_starts_again_goes_on_from_its_newest_intact_checkpoint(lab: Lab, folder: Path) -> None:
    options = {"open_ended": True, "pause": 0.02, "checkpoint": folder, "checkpoint_every": 5}
    agent = lab.launch("--min", "1", "--max", "2", **options)
    wait_for_checkpoints(lab, folder, 2)
    left = agent.descendants()
    agent.signal(signal.SIGKILL)
    wait_until_gone(left)  # they write checkpoints until then
    older, newest = sorted(folder.glob("step-*.ckpt"))[-2:]
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    seen = len(lab.journal("change"))
    again = lab.launch("--min", "1", "--max", "2", **options)
    lab.wait(lambda: len(lab.journal("change")) > seen, 60, "the restored job")
    assert lab.journal("change")[seen]["step"] == int(older.stem.partition("-")[2])
    lab.wait_for_text(again, f"DAMAGED CHECKPOINT {newest}")
    lab.wait_for_steps(1)  # beyond what the first one had reached
    lab.finish()
    assert again.wait() == 0
    lab.assert_exact()


def test_all_agents_drained_at_once_leave_a_checkpoint_from_which_later_ones_go_on(lab: Lab, folder: Path) -> None:
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1", *MANY)
    options = {"open_ended": True, "pause": 0.02, "checkpoint": folder, "checkpoint_every": 10**6}
    agents = [lab.launch(*flags, **options) for _ in range(2)]
    lab.wait_for_world(2)
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait(30) for agent in agents] == [0, 0]
    assert not lab.journal("end")
    (checkpoint,) = folder.glob("step-*.ckpt")
    step = lab.step()
    assert int(checkpoint.stem.partition("-")[2]) == step
    later = lab.launch(*flags, **options)
    assert restored_from(lab) == step
    lab.wait_for_steps(3)
    lab.finish()
    assert later.wait() == 0
    lab.assert_exact(members=1)


def test_without_a_checkpoint_the_loss_of_every_holder_fails_the_job_and_never_starts_it_anew(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "2", *MANY, open_ended=True, pause=0.02)
    lab.wait_for_world(2)
    lab.kill_rank(0, 1)
    assert agent.wait() == 76
    assert "every holder of the state is gone, and no worker can read a checkpoint" in agent.output
    assert {entry["generation"] for entry in lab.journal("change", cause="start")} == {1}
    assert lab.generation() <= 2, "one of the two may have gone on alone before it was killed too"
