"""The face of the job, in a job of one: what a script may do, and what it is told when it does something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import torch
import elastic_launch as elastic
from torch.nn.functional import mse_loss

torch.manual_seed(0)
data = [(torch.randn(4), torch.zeros(1)) for _ in range(50)]
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
"""

JOIN = """
job = elastic.join(model=model, optimizer=optimizer)
loader = job.loader(data, global_batch=16)
"""


def run(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(HEAD + body)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)


def test_a_plain_script_is_a_job_of_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        JOIN
        + """
changes = []
job.on_change(changes.append)
for epoch in job.epochs(3):
    for x, y in loader:
        with job.step():
            loss = mse_loss(job.model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            job.log(loss=loss)
    result = job.evaluate(data, lambda m, batch: {"loss": mse_loss(m(batch[0]), batch[1])}, batch_size=7)
    exact = float(mse_loss(model(torch.stack([x for x, _ in data])), torch.stack([y for _, y in data])))
    assert abs(result["loss"] - exact) < 1e-6, (result, exact)
assert (job.global_step, job.samples, job.world_size, job.rank, job.generation) == (12, 150, 1, 0, 1)
assert job.allreduce(3, "sum") == 3.0
assert torch.equal(job.allreduce(torch.arange(3), "max"), torch.arange(3))
assert torch.distributed.get_world_size() == 1
assert len(changes) == 1 and changes[0].cause == "start"
assert 0 < job.metrics["loss"] < 0.1
""",
    )
    assert done.returncode == 0, done.stderr


def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        JOIN
        + """
x, y = torch.randn(10, 4), torch.randn(10, 1)
mse_loss(model(x), y).backward()
whole = [p.grad.clone() for p in model.parameters()]
optimizer.zero_grad()
with job.step():
    for piece, target in job.micro_batches((x, y), 4):
        mse_loss(job.model(piece), target).backward()
    for a, b in zip(whole, model.parameters()):
        assert torch.allclose(a, b.grad, atol=1e-7)
    optimizer.step()
""",
    )
    assert done.returncode == 0, done.stderr


def test_an_exception_of_the_script_is_passed_on_and_commits_nothing(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        JOIN
        + """
try:
    with job.step():
        raise KeyError("mine")
except KeyError:
    pass
assert job.global_step == 0
with job.step():
    pass
assert job.global_step == 1
""",
    )
    assert done.returncode == 0, done.stderr


LOOP = """
for epoch in job.epochs(1):
    for x, y in loader:
        with job.step():
            optimizer.zero_grad(); mse_loss(job.model(x), y).backward(); optimizer.step()
"""


REFUSED = {
    "a step of the optimizer outside of a block": (JOIN + "optimizer.step()", "outside of a block"),
    "nested blocks": (JOIN + "with job.step():\n    with job.step(): pass", "cannot be nested"),
    "a batch without a block": (
        JOIN + "for epoch in job.epochs(1):\n    for x, y in loader: pass",
        "no step has committed",
    ),
    "a unit inside a block": (JOIN + "with job.step(): job.allreduce(1)", "between two blocks"),
    "a second backward behind the optimizer's step": (
        JOIN
        + """
x, y = torch.randn(5, 4), torch.zeros(5, 1)
with job.step():
    mse_loss(job.model(x), y).backward()
    optimizer.step()
    mse_loss(job.model(x), y).backward()
""",
        "Split the block into two",
    ),
    "a unit with a batch in hand": (
        JOIN + "for epoch in job.epochs(1):\n    for x, y in loader: job.allreduce(1)",
        "with a batch in hand",
    ),
    "a unit before the loop": (JOIN + "job.evaluate(data, lambda m, b: {})", "before the first epoch or step"),
    "a loader without a batch size": (JOIN + "job.loader(data)", "global_batch="),
    "a loader with an empty batch": (JOIN + "job.loader(data, global_batch=0)", "at least 1"),
    "the DataLoader's batch size": (JOIN + "job.loader(data, global_batch=4, batch_size=3)", "not batch_size="),
    "a second join": (JOIN + "elastic.join(model=model)", "called once"),
    "an unknown operation": (JOIN + LOOP + "job.allreduce(1, 'median')", "sum, mean, min, max"),
    "a stream": (
        "class Stream(torch.utils.data.IterableDataset):\n    __iter__ = None\n"
        + JOIN
        + "job.loader(Stream(), global_batch=4)",
        "map-style",
    ),
    "no model": ("elastic.join()", "needs a model"),
    "a model that is none": ("elastic.join(model=3)", "not a torch Module"),
    "LBFGS": ("elastic.join(model=model, optimizer=torch.optim.LBFGS(model.parameters()))", "LBFGS"),
    "a wrapped model": ("elastic.join(model=torch.nn.DataParallel(model))", "plain module"),
    "a lazy model": ("elastic.join(model=torch.nn.LazyLinear(3))", "one forward pass"),
}

TRY_ALL = """
import json, sys
from elastic_launch.trainer import joining

outcomes = {}
for name, body in json.load(sys.stdin).items():
    joining._job = None
    try:
        exec(body, {})
        outcomes[name] = "nothing was raised"
    except elastic.UsageError as error:
        outcomes[name] = str(error)
    except Exception as error:
        outcomes[name] = f"another error: {error!r}"
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What each refused script is told; all in one process, since importing torch takes seconds."""
    bodies = {name: HEAD + body for name, (body, _) in REFUSED.items()}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + TRY_ALL],
        input=json.dumps(bodies),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_with_the_way_out(outcomes: dict[str, str], what: str) -> None:
    assert REFUSED[what][1] in outcomes[what]


def test_a_step_that_is_unwound_at_its_vote_leaves_no_trace(tmp_path: Path) -> None:
    """The ring fails under the vote, once; the gradients had been unscaled already."""
    done = run(
        tmp_path,
        """
from elastic_launch.errors import RingError
from elastic_launch.trainer.exchange import Action

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).double()
twin = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).double()
twin.load_state_dict(model.state_dict())
x, y = torch.randn(16, 4).double(), torch.randn(16, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(twin.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
job = elastic.join(model=model, optimizer=optimizer, scaler=scaler)
job.rank
ring = job.member.ring
passes = ring.sum_for_vote

def fails(ballot):
    ring.sum_for_vote = passes
    raise RingError("a peer is gone")

ring.sum_for_vote = fails
job.member.recover = lambda pending: Action.REDO
steps = []
for _ in range(3):
    with job.step() as step:
        optimizer.zero_grad()
        scaler.scale(mse_loss(job.model(x), y)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    steps.append(step.committed)
for _ in range(2):
    other.zero_grad()
    mse_loss(twin(x), y).backward()
    other.step()
assert steps == [False, True, True], steps
assert job.global_step == 2
for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values()):
    assert torch.allclose(a, b, atol=1e-12), name
""",
    )
    assert done.returncode == 0, done.stderr


def test_an_early_stop_ends_the_epochs(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        JOIN
        + """
for epoch in job.epochs(100):
    for x, y in loader:
        with job.step():
            optimizer.zero_grad(); mse_loss(job.model(x), y).backward(); optimizer.step()
        if job.global_step == 6:
            job.stop()
assert job.global_step == 7 and job.stopped, job.global_step
""",
    )
    assert done.returncode == 0, done.stderr
