"""The loader's processes in a real job: none outlives its worker, whether it is killed or comes to its end."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, time
import torch
import elastic_launch as elastic

class Slow:
    def __len__(self):
        return 800

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), index % 7 / 7.0)

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job = elastic.join(model=model, optimizer=optimizer)
loader = job.loader(Slow(), global_batch=10, num_workers=2, multiprocessing_context="fork")
print("pids", os.getpid(), *(child.pid for child in multiprocessing.active_children()), flush=True)
for epoch in job.epochs(1):
    for x in loader:
        with job.step():
            loss = job.model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if job.rank == 0 and job.global_step == 20:
            print("committed 20", flush=True)
print("samples", job.samples, flush=True)
"""


def has_ended(process: int) -> bool:
    """Whether the process of this descriptor is gone within a few seconds."""
    readable, _, _ = select.select([process], [], [], 3)
    return bool(readable)


@pytest.mark.timeout(180)
def test_no_process_of_the_loader_outlives_its_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = Path(sys.executable).with_name("elastic-launch")
    command = [launch, "--min", "1", "--max", "2", script]
    helpers: dict[int, list[int]] = {}
    lines = []
    victim = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            lines.append(line)
            if match := re.search(r"pids ([\d ]+)", line):
                worker, *children = map(int, match[1].split())
                helpers[worker] = [os.pidfd_open(child) for child in children]
            elif "committed 20" in line and victim is None:
                victim = min(helpers)
                os.kill(victim, signal.SIGKILL)
                assert [has_ended(helper) for helper in helpers.pop(victim)] == [True, True]
    output = "".join(lines)
    assert agent.returncode == 0, output
    assert "samples 800" in output
    assert [has_ended(helper) for rest in helpers.values() for helper in rest] == [True] * (2 * len(helpers))
