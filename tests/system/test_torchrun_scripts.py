"""What torchrun's documentation says of scripts and their environment, sentence by sentence, with lines of torchrun's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .launching import Lab
from .torchrun_jobs import TorchrunJob, free_endpoint


@pytest.fixture
def job(lab: Lab) -> TorchrunJob:
    return TorchrunJob(lab)


# --- Usage ---


def test_single_node_multi_worker(job: TorchrunJob) -> None:
    agent = job.launch("--standalone", "--nnodes=1", "--nproc-per-node=2", epochs=3, batch_size=32)
    assert agent.wait() == 0
    ends = job.entries("end")
    assert sorted((entry["RANK"], entry["WORLD_SIZE"], entry["epoch"]) for entry in ends) == [
        ("0", "2", 2),
        ("1", "2", 2),
    ]
    assert job.entries("start")[0]["arguments"][-4:] == ["--epochs", "3", "--batch-size", "32"]
    assert len(job.starts()) == 1


def test_the_script_of_the_tutorial_on_ddp_runs_on_two_nodes_as_it_is(job: TorchrunJob) -> None:
    line = (
        "--nnodes=2",
        "--nproc_per_node=2",
        "--rdzv_id=100",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint={free_endpoint()}",
    )
    agents = [job.run(*line, job.script("elastic_ddp.py")) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    output = agents[0].output + agents[1].output
    for rank in range(4):
        assert f"Start running basic DDP example on rank {rank} of 4." in output
        assert f"Finished running basic DDP example on rank {rank}." in output


def test_a_module_and_any_program_run_too(job: TorchrunJob, tmp_path: Path) -> None:
    program = tmp_path / "run"
    program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $1"\n')
    program.chmod(0o755)
    agent = job.run("--nproc-per-node", "2", "--no-python", str(program), "hello")
    assert agent.wait() == 0
    assert {"rank 0 of 2: hello", "rank 1 of 2: hello"} == set(re.findall(r"rank \d of \d: \w+", agent.output))
    module = tmp_path / "told.py"
    module.write_text("import os, sys\nprint('rank', os.environ['RANK'], 'as', __name__, *sys.argv[1:])\n")
    for line in (["-m", "told"], ["--run-path", str(module)]):
        agent = job.run("--nproc-per-node", "2", *line, "x", environment={"PYTHONPATH": f"{tmp_path}:{sys.path[0]}"})
        assert agent.wait() == 0
        assert {"rank 0 as __main__ x", "rank 1 as __main__ x"} == set(re.findall(r"rank \d as \w+ x", agent.output))


# --- Environment Variables ---


def test_the_environment_variables(job: TorchrunJob) -> None:
    line = ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=7", "--rdzv-id=job-7", "--rdzv-backend=c10d")
    line = (*line, f"--rdzv-endpoint={free_endpoint()}", "--role=trainer")
    agents = [job.launch(*line) for _ in range(2)]
    started = job.wait_for_world(4)
    expected = {
        "RANK": ["0", "1", "2", "3"],
        "LOCAL_RANK": ["0", "1", "0", "1"],
        "GROUP_RANK": ["0", "0", "1", "1"],
        "ROLE_RANK": ["0", "1", "2", "3"],
        "LOCAL_WORLD_SIZE": ["2"] * 4,
        "WORLD_SIZE": ["4"] * 4,
        "ROLE_WORLD_SIZE": ["4"] * 4,
        "ROLE_NAME": ["trainer"] * 4,
        "TORCHELASTIC_RESTART_COUNT": ["0"] * 4,
        "TORCHELASTIC_MAX_RESTARTS": ["7"] * 4,
        "TORCHELASTIC_RUN_ID": ["job-7"] * 4,
        "OMP_NUM_THREADS": ["1"] * 4,
    }
    assert {name: [entry[name] for entry in started] for name in expected} == expected
    assert len({(entry["MASTER_ADDR"], entry["MASTER_PORT"]) for entry in started}) == 1
    assert len({entry["TORCHELASTIC_ERROR_FILE"] for entry in started}) == 4
    job.crash(2)
    again = job.wait_for_world(4, after=started)
    assert {entry["TORCHELASTIC_RESTART_COUNT"] for entry in again} == {"1"}
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0]


DUMP = """
import json, os, sys, torch
from pathlib import Path
folder = Path(sys.argv[1])
folder.joinpath(os.environ["RANK"] + ".tmp").write_text(json.dumps(dict(os.environ)))
folder.joinpath(os.environ["RANK"] + ".tmp").rename(folder / (os.environ["RANK"] + ".json"))
"""
OF_TORCHRUN_ITSELF = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # how its flag gets to another part of it
OF_EACH_RUN = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}


def test_scripts_see_every_variable_that_the_installed_torchrun_sets(job: TorchrunJob, tmp_path: Path) -> None:
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", "--role=trainer", str(script)]
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    theirs = [sys.executable, "-m", "torch.distributed.run", *flags, str(tmp_path / "theirs")]
    subprocess.run(theirs, env=environ, check=True, timeout=120, capture_output=True)
    assert job.run(*flags, str(tmp_path / "ours")).wait() == 0
    for rank in ("0", "1"):
        their, our = (json.loads((tmp_path / who / f"{rank}.json").read_text()) for who in ("theirs", "ours"))
        set_by_torchrun = {name for name in their if environ.get(name) != their[name]} - OF_TORCHRUN_ITSELF
        assert {"RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"} <= set_by_torchrun
        assert set_by_torchrun - set(our) == set()
        differ = {name: (their[name], our[name]) for name in set_by_torchrun if their[name] != our[name]}
        assert set(differ) <= OF_EACH_RUN, differ


INIT = """
import os, sys
import torch, torch.distributed as dist

assert dist.is_torchelastic_launched()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
how = sys.argv[1]
if how == "env":
    dist.init_process_group("gloo", init_method="env://")
elif how == "tcp":
    dist.init_process_group("gloo", init_method="tcp://{}:{}".format(*place), rank=rank, world_size=world_size)
elif how == "store":
    store = dist.PrefixStore("mine", dist.TCPStore(*place, world_size, False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
total = torch.tensor([float(rank)])
dist.all_reduce(total)
print("total", int(total), how)
dist.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("how", ["env", "tcp", "store"])
def test_the_store_at_the_master_s_address_serves_every_way_to_initialise_again_after_a_failure_too(
    job: TorchrunJob, tmp_path: Path, how: str
) -> None:
    """As PyTorch's own tests of its launcher do it (`test_init_method_tcp_with_torchelastic` and the like)."""
    script = tmp_path / "init.py"
    once = tmp_path / "once"
    once.touch()
    failing = (
        f"import os\nif os.path.exists({str(once)!r}) and rank == 1:\n    os.unlink({str(once)!r})\n    sys.exit(3)\n"
    )
    script.write_text(INIT.replace('print("total"', failing + 'print("total"'))
    agent = job.run("--nproc-per-node", "3", "--max-restarts", "1", str(script), how)
    assert agent.wait() == 0
    assert not once.exists()
    assert agent.output.count(f"total 3 {how}") >= 3


def test_roles_are_counted_by_themselves(job: TorchrunJob) -> None:
    server = job.lab.serve()
    line = ("--rendezvous", server.url, "--min", "3", "--max", "3", "--role")
    agents = [job.launch(*line, "a", "--nproc-per-node", "2"), job.launch(*line, "b", "--nproc-per-node", "1")]
    started = job.wait_for_world(3)
    places = {(entry["ROLE_NAME"], entry["ROLE_RANK"], entry["ROLE_WORLD_SIZE"]) for entry in started}
    assert places == {("a", "0", "2"), ("a", "1", "2"), ("b", "0", "1")}
    job.finish()
    assert [agent.wait() for agent in agents] == [0, 0]


def test_the_interpreter_may_be_another_one(job: TorchrunJob, tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\necho "by another python: $1"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    agent = job.launch("--nproc-per-node", "1", environment={"PYTHON_EXEC": str(other)}, epochs=1)
    assert agent.wait() == 0
    assert "by another python: -u" in agent.output
    assert len(job.entries("end")) == 1


def test_each_worker_may_see_its_own_device_alone(job: TorchrunJob) -> None:
    flags = ("--nproc-per-node", "2", "--virtual-local-rank")
    agent = job.launch(*flags, environment={"CUDA_VISIBLE_DEVICES": "5,7"}, epochs=1)
    assert agent.wait() == 0
    seen = {(entry["RANK"], entry["LOCAL_RANK"], entry["CUDA_VISIBLE_DEVICES"]) for entry in job.entries("start")}
    assert seen == {("0", "0", "5"), ("1", "0", "7")}


# --- errors: "On worker errors, this tool will summarize the details of the error" ---


def test_a_recorded_error_is_shown_with_its_traceback_and_handed_on_to_who_started_the_agent(
    job: TorchrunJob, tmp_path: Path
) -> None:
    reply = tmp_path / "reply.json"
    flags = ("--nproc-per-node", "2", "--max-restarts", "0")
    agent = job.launch(*flags, environment={"TORCHELASTIC_ERROR_FILE": str(reply)})
    job.wait_for_world(2)
    job.crash(1)
    assert agent.wait() == 1
    words = agent.output.partition("has failed")[2]
    assert "ValueError: rank 1 has no luck" in words and "in heed" in words
    message = json.loads(reply.read_text())["message"]
    assert "ValueError: rank 1 has no luck" in message["message"]
    assert "in heed" in message["extraInfo"]["py_callstack"]
    assert message["errorCode"] == 1 and int(message["extraInfo"]["timestamp"]) > 0


def test_without_a_recorded_error_there_is_the_exit_code(job: TorchrunJob) -> None:
    agent = job.launch("--nproc-per-node", "2", "--max-restarts", "0")
    job.wait_for_world(2)
    job.exit(0, 7)
    assert agent.wait() == 7
    assert "exited with code 7" in agent.output


def test_no_error_is_handed_on_where_there_is_none(job: TorchrunJob, tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    agent = job.launch("--nproc-per-node", "1", environment={"TORCHELASTIC_ERROR_FILE": str(reply)}, epochs=1)
    assert agent.wait() == 0
    assert not reply.exists()


def test_a_signal_is_named(job: TorchrunJob) -> None:
    agent = job.launch("--nproc-per-node", "2", "--max-restarts", "0")
    started = job.wait_for_world(2)
    os.kill(started[1]["pid"], signal.SIGSEGV)
    assert agent.wait() == 128 + signal.SIGSEGV
    assert "SIGSEGV" in agent.output


# --- output ---


def test_redirects_tee_and_the_filter_of_ranks(job: TorchrunJob, tmp_path: Path) -> None:
    script = job.script("elastic_ddp.py")
    flags = ("--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"))
    agent = job.run(*flags, "-t", "3", "--local-ranks-filter", "1", script)
    assert agent.wait() == 0
    assert "example on rank 1" in agent.output and "example on rank 0" not in agent.output
    written = "".join(file.read_text() for file in (tmp_path / "logs").rglob("stdout.log"))
    assert "example on rank 0." in written and "example on rank 1." in written
    flags = ("--nproc-per-node", "2", "--log-dir", str(tmp_path / "more"))
    agent = job.run(*flags, "-r", "0:1", script)
    assert agent.wait() == 0
    assert "example on rank 1" in agent.output and "example on rank 0" not in agent.output
    written = "".join(file.read_text() for file in (tmp_path / "more").rglob("stdout.log"))
    assert "example on rank 0." in written and "example on rank 1." not in written


# --- signals ---


def test_other_signals_may_drain_too(job: TorchrunJob) -> None:
    line = (
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={free_endpoint()}",
        "--signals-to-handle=SIGTERM,SIGUSR1",
    )
    first = job.launch(*line)
    job.lab.wait_for_text(first, "serving job")
    second = job.launch(*line)
    both = job.wait_for_world(2)
    second.signal(signal.SIGUSR1)
    assert second.wait() == 0
    assert "SIGUSR1: this agent's workers leave the job" in second.output
    job.wait_for_world(1, after=both)
    job.finish()
    assert first.wait() == 0
