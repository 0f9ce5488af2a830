"""What a script gets from its job beside the step, right at any world size and under kills; and what it is refused."""

from __future__ import annotations

import math

from .conftest import Undisturbed
from .launching import Lab

MANY = ("--max-restarts", "1000")


def test_metrics_reductions_evaluations_and_registered_values_are_exact_while_members_are_killed(lab: Lab) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, script="features.py")
    lab.wait_for_world(3)
    for place in ("step", "epoch end", "evaluation"):
        with lab.held(place):
            lab.kill_rank(0)
            lab.wait_for_text(agent, f"generation {lab.generation() + 1}:")
        lab.wait_for_steps(1)
        lab.wait_for_world(3)
    lab.finish()
    assert agent.wait() == 0

    partial = lab.finished_without_a_voter()
    for entry in lab.journal("step"):
        assert entry["step"] in partial or math.isclose(entry["loss"], entry["wanted"], rel_tol=1e-6)
        assert entry["newest"] == entry["history"] == entry["step"]
    for entry in lab.journal("step"):
        if entry["step"] not in partial:
            assert entry["sums"] == [entry["world_size"]] * 2
    assert {entry["world_size"] for entry in lab.journal("reduced")} >= {2, 3}
    for entry in lab.journal("reduced"):
        assert (entry["mean"], entry["most"]) == (2.0, entry["epoch"])
        assert entry["least"] == [5, entry["epoch"]]
        assert entry["tensor"] == [entry["world_size"]] * 2
    for entry in lab.journal("evaluated"):
        assert (entry["ids"], entry["ones"]) == (24.5, 1.0)
    for entry in lab.journal("change", cause="joined"):
        assert entry["newest"] == entry["history"] == entry["step"] > 0, "a joiner's values came too late"
    (stale,) = lab.journal("stale")
    assert "torch.distributed.new_group" in stale["text"]
    ends = lab.journal("end")
    assert len({(end["steps"], end["newest"], end["history"]) for end in ends}) == 1
    assert sorted(end["rank"] for end in ends) == list(range(len(ends)))


def test_scaled_tied_frozen_unused_bfloat16_and_compiled_models_follow_one_undisturbed_worker(
    lab: Lab, undisturbed: Undisturbed
) -> None:
    agent = lab.launch("--min", "1", "--max", "3", *MANY, script="kinds.py", open_ended=True, pause=0.02)
    lab.wait_for_world(3)
    lab.wait_for_step(3)
    lab.kill_rank(0)
    lab.wait_for_world(2)
    lab.wait_for_world(3)
    lab.wait_for_step(45)
    lab.kill_rank(1)
    lab.wait_for_world(2)
    lab.finish()
    assert agent.wait() == 0
    ends = lab.journal("end")
    assert len({(end["steps"], end["scale"], str(end["skipped"]), str(end["state"])) for end in ends}) == 1
    assert ends[0]["skipped"] == [4, 40]
    expected = undisturbed("--epochs", "60", script="kinds.py").losses()
    partial = lab.finished_without_a_voter()
    for entry in lab.journal("step"):
        if entry["step"] in partial:
            continue
        for name, loss in entry["loss"].items():
            tolerance = 0.1 if name == "bfloat16" else 1e-9
            assert math.isclose(loss, expected[entry["step"]][name], rel_tol=tolerance), (name, entry)


REFUSALS = {
    "fsdp": "sharded with FSDP: no survivor would hold a lost worker's shard. Give elastic.join the plain model",
    "wrapped": "wrapped in DataParallel already: give elastic.join the plain module",
    "lbfgs": "LBFGS, which runs backward several times inside one step",
    "lazy": "has no shape yet: run one forward pass on a sample before elastic.join",
    "no model": "elastic.join needs a model",
    "twice": "elastic.join is called once",
    "stream": "an IterableDataset has no samples to share out by number: give a map-style data set",
    "early allreduce": "job.allreduce was called before the first epoch or step",
    "outside": "optimizer.step() was called outside of a block: put forward, backward and it into `with job.step():`",
    "nested": "job.step() blocks cannot be nested",
    "allreduce inside": "job.allreduce was called inside a job.step() block: call it between two blocks",
    "second backward": "nothing may be exchanged once the step has been agreed. Split the block into two",
    "collective": "nothing may be exchanged once the step has been agreed. Split the block into two",
}


def test_what_cannot_be_trained_elastically_is_refused_with_the_way_out(lab: Lab) -> None:
    agent = lab.launch("--min", "2", "--max", "2", script="refusals.py")
    agent.wait()
    told = {entry["what"]: entry for entry in lab.journal("refused")}
    assert set(told) >= set(REFUSALS), agent.output
    wrong = {what: told[what]["text"] for what, text in REFUSALS.items() if text not in told[what]["text"]}
    assert not wrong
    assert {told[what]["kind"] for what in REFUSALS} == {"UsageError"}
