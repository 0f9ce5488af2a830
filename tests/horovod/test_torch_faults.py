"""An elastic PyTorch script that says `import horovod.torch`, unchanged, while workers are killed, come and go."""

from __future__ import annotations

import signal

from .jobs import HorovodLab

SCRIPT = "torch_elastic.py"


def test_survivors_of_a_killed_worker_go_on_from_their_commit_in_the_same_processes(lab: HorovodLab) -> None:
    command = lab.run(SCRIPT, "-np", "3", "--min-np", "2", epochs=99, open_ended=True, commit_every=5)
    lab.wait_for_total(12)
    [victim] = lab.kill_at(1)
    lab.wait_for_size(2)
    lab.wait_for_size(3)
    lab.finish()
    assert command.wait() == 0, command.output
    ends = lab.ends(3)
    assert all(end["accuracy"] > 0.85 for end in ends), ends
    survivors = {entry["pid"] for entry in lab.journal("step", total=1)} - {victim}
    assert {end["pid"] for end in ends} > survivors, "a survivor was started again"
    assert {entry["pid"] for entry in lab.journal("reset")} >= survivors
    again = [entry for entry in lab.journal("entered") if entry["pid"] in survivors and entry["total"] > 0]
    assert again and all(entry["total"] % 5 == 0 for entry in again), "not at a commit"


def test_a_worker_that_comes_gets_the_state_and_one_that_is_drained_leaves_with_0(lab: HorovodLab) -> None:
    flags = {"epochs": 99, "open_ended": True, "pause": 0.01}
    first = lab.run(SCRIPT, "--min", "1", "--max", "2", "--nproc-per-node", "1", **flags)
    lab.wait_for_total(5)
    second = lab.run(SCRIPT, "--rendezvous", first.url, **flags)
    lab.wait_for_size(2)
    [joined] = [entry for entry in lab.journal("entered") if entry["size"] == 2 and entry["rank"] == 1]
    assert joined["total"] >= 5, "it began from nothing"
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.output
    lab.wait_for_size(1)
    lab.finish()
    assert first.wait() == 0, first.output
    [end] = lab.ends(1)
    assert end["size"] == 1 and end["accuracy"] > 0.85, end
    seen = [entry["total"] for entry in lab.journal("step", pid=end["pid"])]
    assert seen == [*range(1, end["total"] + 1)], "planned changes have something done twice"
