"""Binding to CPUs is real here; only which CPUs are near which GPU is invented, for want of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWO_GPUS_ON_ONE_NODE = """
import os, sys
import torch.numa.binding as binding
binding._get_numa_node_index_for_gpu_index = lambda *, gpu_index: 0
binding._get_gpu_indices_for_numa_node = lambda *, numa_node_index: {0, 1}
from elastic_launch.trainer.running import run
sys.argv = [sys.argv[1]]
run(sys.argv[0], as_module=False)
"""
CORES = {
    path.read_text().strip()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_cpus_list")
    if int(path.parent.parent.name[3:]) in os.sched_getaffinity(0)
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("import os\nprint(*sorted(os.sched_getaffinity(0)))\n")
    numactl = tmp_path / "numactl"  # torch wants it to be there, and uses it for other programs than Python
    numactl.write_text("#!/bin/sh\n")
    numactl.chmod(0o755)
    return path


def run(script: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TWO_GPUS_ON_ONE_NODE, str(script)]
    path = {"PATH": f"{script.parent}:{os.environ['PATH']}"}
    return subprocess.run(command, env={**os.environ, **path, **environ}, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(
    len(CORES) < 2 or not Path("/sys/devices/system/node/node0").exists(), reason="needs two cores on a NUMA node"
)
def test_the_script_runs_on_the_cpus_that_are_its_worker_s_alone(script: Path) -> None:
    bound = [run(script, ELASTIC_NUMA_BINDING="exclusive", ELASTIC_LOCAL_RANK=rank).stdout.split() for rank in "01"]
    assert all(bound) and not set(bound[0]) & set(bound[1])
    assert (
        run(script, ELASTIC_NUMA_BINDING="exclusive", ELASTIC_LOCAL_RANK="1", LOCAL_RANK="0").stdout.split() == bound[0]
    )


def test_without_being_asked_nothing_is_bound(script: Path) -> None:
    assert run(script).stdout.split() == [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]


def test_a_binding_that_cannot_be_ends_the_worker(script: Path) -> None:
    (script.parent / "numactl").unlink()
    ended = run(script, ELASTIC_NUMA_BINDING="node", PATH=str(script.parent))
    assert ended.returncode == 1 and not ended.stdout
    assert "numactl CLI is required" in ended.stderr
