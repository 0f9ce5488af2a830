"""What carries CPU tensors is what was asked for, by flag or by variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from .launching import Lab

SCRIPT = """
import torch
import torch.distributed as dist

import elastic_launch as elastic

model = torch.nn.Linear(2, 1)
job = elastic.join(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
total = torch.full((1,), 1.0 + job.rank)
dist.all_reduce(total)
print(f"rank {job.rank} of {job.world_size} reduces with {type(dist.group.WORLD.cpu).__name__} to {total.item()}")
"""


@pytest.mark.parametrize(
    ("flags", "environment", "name"),
    [
        ((), {}, "ProcessGroupGloo"),
        (("--backend", "tcp"), {}, "TcpGroup"),
        ((), {"ELASTIC_BACKEND": "tcp"}, "TcpGroup"),
    ],
)
def test_the_ring_is_the_one_that_was_asked_for(
    lab: Lab, tmp_path: Path, flags: tuple[str, ...], environment: dict[str, str], name: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    agent = lab.launch("--min", "2", "--max", "2", *flags, script=str(script), environment=environment)
    assert agent.wait() == 0, agent.output
    for rank in range(2):
        assert f"rank {rank} of 2 reduces with {name} to 3.0" in agent.output


def test_a_ring_that_there_is_not_is_refused(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    agent = lab.launch("--max", "1", script=str(script), environment={"ELASTIC_BACKEND": "mpi"})
    assert agent.wait() == 2
    assert "ELASTIC_BACKEND is 'mpi': give gloo or tcp" in agent.output
