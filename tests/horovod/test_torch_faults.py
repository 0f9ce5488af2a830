"""An elastic PyTorch script that says `import horovod.torch`, unchanged, while workers are killed, come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from .jobs import PATIENCE, SCRIPTS, HorovodLab

SCRIPT = "torch_elastic.py"


def test_a_script_of_a_fixed_size_trains_as_it_is(lab: HorovodLab) -> None:
    command = lab.run("torch_fixed.py", "-np", "2")
    assert command.wait(PATIENCE) == 0, command.output
    assert "size 2 accuracy 0.8" in command.output or "size 2 accuracy 0.9" in command.output, command.output


def test_workers_that_were_told_different_fusion_limits_fuse_alike(lab: HorovodLab) -> None:
    flags = ("--min", "2", "--max", "2", "--nproc-per-node", "1")
    first = lab.run("torch_fusing.py", *flags, environment={"HOROVOD_FUSION_THRESHOLD": "1000"})
    second = lab.run("torch_fusing.py", "--rendezvous", first.url, "--nproc-per-node", "1")
    assert [agent.wait(PATIENCE) for agent in (first, second)] == [0, 0], first.output + second.output


def test_without_an_agent_it_is_a_world_of_one() -> None:
    command = [sys.executable, "-m", "elastic_launch.horovod.running", str(SCRIPTS / "torch_fixed.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "size 1 accuracy 0." in done.stdout, done.stderr


def test_survivors_of_a_killed_worker_go_on_from_their_commit_in_the_same_processes(lab: HorovodLab) -> None:
    command = lab.run(SCRIPT, "-np", "3", "--min-np", "2", epochs=99, open_ended=True, commit_every=5)
    lab.wait_for_total(12)
    [victim] = lab.kill_at(1)
    lab.wait_for_size(2)
    lab.wait_for_size(3)
    lab.finish()
    assert command.wait(PATIENCE) == 0, command.output
    ends = lab.ends(3)
    assert all(end["accuracy"] > 0.8 for end in ends), ends
    survivors = {entry["pid"] for entry in lab.journal("step", total=1)} - {victim}
    assert {end["pid"] for end in ends} > survivors, "a survivor was started again"
    assert {entry["pid"] for entry in lab.journal("reset")} >= survivors
    again = [entry for entry in lab.journal("entered") if entry["pid"] in survivors and entry["total"] > 0]
    at_commits = [entry["total"] % 5 == 0 or entry["batch"] == 0 for entry in again]  # also at each epoch's end
    assert again and all(at_commits), "not at a commit"
    losses = {entry["total"]: entry["loss"] for entry in lab.journal("step", rank=0)}
    assert len(losses) == max(losses), "a step is missing"


@pytest.mark.soak
def test_a_worker_that_comes_gets_the_state_and_one_that_is_drained_leaves_with_0(lab: HorovodLab) -> None:
    flags = {"epochs": 99, "open_ended": True, "pause": 0.01}
    first = lab.run(SCRIPT, "--min", "1", "--max", "2", "--nproc-per-node", "1", **flags)
    lab.wait_for_total(5)
    second = lab.run(SCRIPT, "--rendezvous", first.url, **flags)
    lab.wait_for_size(2)
    [joined] = [entry for entry in lab.journal("entered") if entry["size"] == 2 and entry["rank"] == 1]
    assert joined["total"] >= 5, "it began from nothing"
    second.signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0, second.output
    lab.wait_for_size(1)
    lab.finish()
    assert first.wait(PATIENCE) == 0, first.output
    [end] = lab.ends(1)
    assert end["size"] == 1, end
    seen = [entry["total"] for entry in lab.journal("step", pid=end["pid"])]
    assert seen == [*range(1, end["total"] + 1)], "planned changes have something done twice"


@pytest.mark.soak
def test_the_holder_at_rank_0_may_die_while_a_joiner_waits_for_the_state(lab: HorovodLab) -> None:
    flags = {"epochs": 99, "open_ended": True, "pause": 0.01}
    first = lab.run(SCRIPT, "--min", "1", "--max", "3", "--nproc-per-node", "2", **flags)
    lab.wait_for_size(2)
    note = lab.folder / "hold-reset"
    note.touch()
    second = lab.run(SCRIPT, "--rendezvous", first.url, **flags)
    lab.wait(lambda: len(lab.journal("held")) == 2, 60, "both holders between the generation and the state")
    lab.kill_at(0)
    note.unlink()
    lab.wait_for_size(3)
    lab.finish()
    assert first.wait(PATIENCE) == 0 and second.wait(PATIENCE) == 0, first.output + second.output
    before = lab.journal("reset")[0]
    joined = [entry for entry in lab.journal("entered") if entry["time"] > before["time"]]
    assert joined and all(entry["total"] > 0 for entry in joined), "the job began again"
    lab.ends(3)


@pytest.mark.soak
def test_one_that_had_not_received_the_state_does_not_begin_from_nothing(lab: HorovodLab) -> None:
    flags = {"epochs": 99, "open_ended": True, "pause": 0.01}
    first = lab.run(SCRIPT, "--min", "1", "--max", "2", "--nproc-per-node", "1", "--max-restarts", "0", **flags)
    server = first.url
    lab.wait_for_total(5)
    holder = lab.pid_at(0)
    note = lab.folder / "hold-reset"
    note.touch()
    second = lab.run(SCRIPT, "--rendezvous", server, **flags)
    lab.wait_for_entry("held")
    os.kill(holder, signal.SIGKILL)
    assert first.wait(PATIENCE) != 0 and second.wait(PATIENCE) != 0, first.output + second.output
    steps = [entry for entry in lab.journal("step") if entry["pid"] != holder]
    assert not steps, "it trained on without the state"


@pytest.mark.soak
def test_a_script_that_knows_of_no_change_starts_again_when_a_worker_is_lost(lab: HorovodLab) -> None:
    command = lab.run("torch_starting_again.py", "-np", "2", steps=10_000)
    lab.wait_for_total(25)
    lab.kill_at(1)
    lab.wait(lambda: len(lab.journal("entered", size=2)) == 4, 60, "both to start again")
    lab.wait_for_total(lab.total() + 20)
    lab.finish()
    assert command.wait(PATIENCE) == 0, command.output
    again = [entry["total"] for entry in lab.journal("entered")][2:]
    assert len(again) == 2 and again[0] == again[1] and again[0] >= 20 and again[0] % 10 == 0, again
    lab.ends(2)
