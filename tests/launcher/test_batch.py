"""What is read from the environment of a batch job, and what is made of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.batch.node_list import nodes, numbers
from elastic_launch.launcher.batch.requeue import is_preempted
from elastic_launch.launcher.batch.sharing import own_share
from elastic_launch.launcher.batch.step import find_step
from elastic_launch.launcher.endpoint import Endpoint

# As srun of Slurm 22.05 sets it for `srun -N3 -n4`, on the second node.
STEP = {
    "SLURM_JOB_ID": "123", "SLURM_STEP_ID": "1", "SLURM_CLUSTER_NAME": "big_one", "SLURM_STEP_NODELIST": "localhost,n[2-3]",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_NODEID": "1", "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n2", "SLURM_PROCID": "2", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
FIRST = {**STEP, "SLURM_NODEID": "0", "SLURMD_NODENAME": "localhost", "SLURM_PROCID": "0"}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,2],login", ["n08", "n09", "n10", "n2", "login"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("", []),
    ],
)
def test_node_lists_are_read_as_scontrol_show_hostnames_does(text: str, names: list[str]) -> None:
    assert nodes(text) == names


def test_numbers_for_each_node_may_be_repeated() -> None:
    assert numbers("2,1(x2)") == [2, 1, 1]


def test_all_tasks_of_a_step_agree_and_only_the_first_serves() -> None:
    first, other = find_step(FIRST), find_step(STEP)
    beside = find_step({**FIRST, "SLURM_LOCALID": "1", "SLURM_PROCID": "1"})
    assert first and other and beside
    assert (first.serves, beside.serves, other.serves) == (True, False, False)
    assert {first.job, beside.job, other.job} == {"slurm-big-one-123.1"}
    assert {first.port, beside.port, other.port} == {first.port}
    assert (first.tasks_here, other.tasks_here) == (2, 1)


def test_a_batch_script_is_no_step() -> None:
    assert find_step({name: value for name, value in STEP.items() if "STEP" not in name}) is None


def test_steps_and_jobs_that_follow_each_other_have_ports_of_their_own() -> None:
    ports = []
    for job in range(100, 140):
        for step in range(7):
            found = find_step({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
            assert found is not None
            ports.append(found.port)
    assert len(set(ports)) == len(ports)
    assert all(25000 <= port < 29000 for port in ports)


def test_an_agent_of_a_step_needs_no_flags() -> None:
    options = parse(["train.py"], STEP)
    assert options.endpoint == Endpoint("localhost", 25862, serves=False)
    assert parse(["train.py"], FIRST).endpoint == Endpoint("localhost", 25862, serves=True)
    assert (options.nproc, options.job, options.describes_job) == (1, "slurm-big-one-123.1", False)
    assert options.drain_signals == (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    assert options.everybody_is_signalled


def test_without_max_there_are_as_many_workers_as_tasks_and_gpus() -> None:
    options = parse(["--nproc-per-node", "2", "--rendezvous", "http://h:1", "train.py"], STEP)
    assert (options.max, options.urls) == (2, ("http://h:1",))
    assert parse(["--nproc-per-node", "2", "train.py"], STEP).max == 8
    assert parse(["train.py"], {**STEP, "CUDA_VISIBLE_DEVICES": "0,1,2"}).max == 12


def test_the_tasks_of_a_step_share_the_workers_of_np() -> None:
    for np, each in (("4", 1), ("8", 2), ("6", 2)):
        for task in (FIRST, STEP):
            asked = parse(["-np", np, "train.py"], task)
            assert (asked.min, asked.max, asked.nproc) == (int(np), int(np), each)
    alone = {**FIRST, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert parse(["-np", "4", "train.py"], alone).nproc == 4


def test_a_step_may_still_be_several_jobs() -> None:
    options = parse(["--standalone", "train.py"], STEP)
    assert options.serves and options.port == 0 and options.address == "127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "this is one of 4 processes that were started together (OMPI_COMM_WORLD_SIZE)"),
        ({"PMI_SIZE": "2"}, "one of 2 processes"),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 4"}, "this LSF job has 2 hosts"),
        ({"PBS_JOBID": "1", "PBS_NODEFILE": "nodes"}, "this PBS job has 2 hosts"),
        ({"SGE_TASK_ID": "undefined", "NHOSTS": "3"}, "this Grid Engine job has 3 hosts"),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}, "this Slurm job has 2 nodes, but srun"),
    ],
)
def test_launchers_beside_each_other_do_not_train_apart_by_accident(
    environ: dict[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nodes").write_text("a\na\nb\n")
    with pytest.raises(SystemExit):
        parse(["train.py"], environ)
    said = capsys.readouterr().err
    assert reason in said and "--rendezvous" in said and "--standalone" in said
    assert parse(["--rendezvous", "http://h:1", "train.py"], environ).urls == ("http://h:1",)
    assert parse(["--standalone", "train.py"], environ).serves


@pytest.mark.parametrize(
    "environ",
    [
        {"PMI_SIZE": "1"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4"},
        {"PBS_JOBID": "1", "PBS_NODEFILE": "missing"},
        {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "4"},
    ],
)
def test_a_batch_job_on_one_host_needs_no_server(environ: dict[str, str]) -> None:
    assert parse(["train.py"], environ).serves


def test_words_of_the_command_line_come_before_what_slurm_says() -> None:
    options = parse(["--rdzv-endpoint", "n3:1234", "--nnodes", "2", "--job", "mine", "train.py"], STEP)
    assert options.endpoint == Endpoint("n3", 1234, serves=None)
    assert options.job == "mine"
    chosen = parse(["--port", "4321", "--signals-to-handle", "TERM,USR2", "train.py"], STEP)
    assert chosen.endpoint == Endpoint("localhost", 4321, serves=False)
    assert chosen.drain_signals == (signal.SIGTERM, signal.SIGUSR2)


def test_tasks_of_one_node_share_its_gpus() -> None:
    shown = {**FIRST, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert own_share(shown) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert own_share({**shown, "SLURM_LOCALID": "1"}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert own_share({**shown, "CUDA_VISIBLE_DEVICES": "2"}) == {}, "bound by Slurm"
    assert own_share({**shown, "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}) == {}, "alone on its node"
    few = {**shown, "SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert own_share(few) == {}, "nothing to divide"


def test_only_a_running_job_that_slurm_preempts_and_would_requeue_counts_as_preempted() -> None:
    about = "JobId=5 JobState=RUNNING Requeue=1 PreemptTime=2026-01-01T10:00:00"
    assert is_preempted(about)
    assert not is_preempted(about.replace("RUNNING", "CANCELLED"))
    assert not is_preempted(about.replace("Requeue=1", "Requeue=0"))
    assert not is_preempted(about.replace("2026-01-01T10:00:00", "None"))
