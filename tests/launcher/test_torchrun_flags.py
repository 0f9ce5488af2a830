"""torchrun's flags, read from the installed torch's own parser: none is forgotten, and each means here what it means there."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.endpoint import Endpoint
from elastic_launch.launcher.options import Options
from elastic_launch.launcher.program import Program

TABLE = Path(__file__).parent.parent.parent / "docs" / "torchrun-flags.md"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
ACTIONS = [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]
# A value for each that says something other than the default; None for a switch.
VALUES: dict[str, str | None] = {
    "nnodes": "1:1", "nproc_per_node": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:2950", "rdzv_id": "digits",
    "rdzv_conf": "join_timeout=7,read_timeout=8,is_host=1", "standalone": None, "max_restarts": "5",
    "monitor_interval": "0.5", "start_method": "fork", "event_log_handler": "console", "role": "trainer", "module": None,
    "no_python": None, "run_path": None, "log_dir": "logs", "redirects": "3", "tee": "0:1,1:2", "local_ranks_filter": "0,1",
    "duplicate_stdout_filters": "loss,,x,step", "duplicate_stderr_filters": "Error", "node_rank": "1",
    "master_addr": "localhost", "master_port": "29511", "local_addr": "127.0.0.2", "logs_specs": "mine",
    "numa_binding": "socket", "signals_to_handle": "SIGTERM,SIGUSR1", "shutdown_timeout": "9", "virtual_local_rank": None,
}  # fmt: skip
REFUSED = ("logs_specs",)
WITHOUT_A_TRACE = ("monitor_interval", "start_method")  # what they ask for is so anyway
# These say something only together with others, or of some programs and places: they have tests of their own below.
IN_COMPANY = ("rdzv_backend", "standalone", "no_python", "run_path", "module")
PROGRAMS = {"module": "json.tool", "no_python": "true"}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def options(*arguments: str, **environ: str) -> Options:
    return parse([*arguments], {**NO_GPU, **environ})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    with pytest.raises(SystemExit) as ending:
        options(*arguments, **environ)
    assert ending.value.code == 2
    return " ".join(capsys.readouterr().err.split())


# --- all of them ---


def test_every_flag_of_torchrun_has_its_row_in_the_table_and_nine_tenths_work() -> None:
    rows = dict(re.findall(r"^\| (`-[^|]*) \| (works|ignored|refused) \|", TABLE.read_text(), re.MULTILINE))
    named = {flag: how for flags, how in rows.items() for flag in re.findall(r"`(-[\w-]+)`", flags)}
    flags = [option for action in ACTIONS for option in action.option_strings if "_" not in option]
    assert set(named) == set(flags)
    assert {name for name, how in named.items() if how == "refused"} == {
        "--" + name.replace("_", "-") for name in REFUSED
    }
    assert {name for name, how in named.items() if how == "ignored"} == {"--start-method"}
    assert sum(how == "works" for how in rows.values()) >= 0.9 * len(rows)


@pytest.mark.parametrize("action", ACTIONS, ids=[action.dest for action in ACTIONS])
def test_a_flag_says_the_same_with_dashes_with_underscores_and_as_a_variable(
    action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = action.dest, VALUES[action.dest]
    program = PROGRAMS.get(name, "train.py")
    spellings = [[option] if value is None else [option, value] for option in action.option_strings]
    spellings += [
        [f"{option}={value}"] for option, value in (pair for pair in spellings if len(pair) == 2) if option[:2] == "--"
    ]
    variables = {f"PET_{name.upper()}": "1" if value is None else value}
    if name in REFUSED:
        for spelling in spellings:
            assert "--logs-specs names a Python class of torchrun's" in refusal(capsys, *spelling, program)
        assert "PET_LOGS_SPECS names a Python class of torchrun's" in refusal(capsys, program, **variables)
        return
    # What asks for files without saying where gets a folder of its own each time.
    around = GPUS if name == "log_dir" else {**GPUS, "PET_LOG_DIR": "logs"}
    expected = parse([program], {**around, **variables})
    if name not in (*WITHOUT_A_TRACE, *IN_COMPANY):
        assert expected != parse([program], around)
    for spelling in spellings:
        assert parse([*spelling, program], around) == expected, spelling
        assert parse([*spelling, program], {**around, f"PET_{name.upper()}": ""}) == expected, spelling


def test_beginnings_of_torchrun_s_flags_are_enough_where_they_are_clear(capsys: pytest.CaptureFixture[str]) -> None:
    asked = options("--nnode=1", "--nproc_per", "3", "train.py", "--nnode", "7")
    assert (asked.min, asked.max, asked.nproc) == (3, 3, 3)
    assert asked.command[-3:] == ("train.py", "--nnode", "7")
    assert "unrecognized arguments: --rdzv" in refusal(capsys, "--rdzv=c10d", "train.py")
    assert "unrecognized arguments: --hang" in refusal(capsys, "--hang=3", "train.py")


def test_a_flag_wins_over_any_variable_and_our_variables_over_torchrun_s() -> None:
    assert options("--rdzv-id", "a", "train.py", ELASTIC_JOB="b", PET_RDZV_ID="c").job == "a"
    assert options("train.py", ELASTIC_JOB="b", PET_RDZV_ID="c").job == "b"
    assert options("train.py", PET_RDZV_ID="c").job == "c"
    assert options("--job", "d", "--rdzv-id", "a", "train.py").job == "d"


def test_the_lines_that_the_documentation_shows_are_lines_of_both_launchers() -> None:
    page = (TABLE.parent / "from-torchrun.md").read_text()
    lines = [line.split()[1:] for line in re.findall(r"`(torchrun -[^`]*)`", page)]
    assert len(lines) >= 4
    for line in lines:
        words = ["1" if word == "$N" else word.replace("$N", "1") for word in line]
        theirs = get_args_parser().parse_args(words)
        asked = options(*words)
        fewest, most = parse_min_max_nnodes(theirs.nnodes)
        nproc = int(theirs.nproc_per_node)
        assert (asked.min, asked.max, asked.nproc) == (fewest * nproc, most * nproc, nproc)
        assert (asked.endpoint is None) == (most == 1)


# --- sizes ---


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ([], (1, 1, 1)),
        (["--nproc-per-node", "4"], (4, 4, 4)),
        (["--nnodes", "1", "--nproc-per-node", "4"], (4, 4, 4)),
        (["--nnodes", "1:1"], (1, 1, 1)),
        (["--nnodes", "1:4", "--rdzv-endpoint", "a:1", "--rdzv-backend", "c10d", "--nproc-per-node", "2"], (2, 8, 2)),
        (["--nnodes", "2:3", "--rdzv-endpoint", "a:1"], (2, 3, 1)),
        (["--rdzv-endpoint", "a:1", "--nproc-per-node", "2"], (2, 2, 2)),
        (["--nnodes", "3", "--rendezvous", "http://a:1", "--nproc-per-node", "2"], (6, 6, 2)),
        (["--nproc-per-node", "4", "--min", "1"], (1, 4, 4)),
        (["--nproc-per-node", "2", "--max", "4"], (1, 4, 2)),
        (["--nnodes", "1:4", "--rdzv-endpoint", "a:1", "--min", "3", "--max", "5"], (3, 5, 1)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nodes_are_counted_in_workers(flags: list[str], sizes: tuple[int, int, int]) -> None:
    asked = options(*flags, "train.py")
    assert (asked.min, asked.max, asked.nproc) == sizes
    assert asked.describes_job


def test_nodes_of_as_many_workers_as_the_host_has_gpus_or_cpus() -> None:
    nodes = ["--nnodes", "1:2", "--rdzv-endpoint", "a:1", "--nproc-per-node"]
    cpus = len(os.sched_getaffinity(0))
    assert parse([*nodes, "auto", "train.py"], GPUS).max == 8
    assert parse([*nodes, "gpu", "train.py"], GPUS).max == 8
    assert parse([*nodes, "auto", "train.py"], NO_GPU).max == 2 * cpus
    assert parse([*nodes, "cpu", "train.py"], GPUS).max == 2 * cpus


def test_a_joining_agent_of_a_server_describes_the_job_only_if_it_counts_nodes() -> None:
    assert not options("--rendezvous", "http://a:1", "--nproc-per-node", "2", "train.py").describes_job


def test_the_size_in_our_variables_gives_way_to_nodes_on_the_command_line() -> None:
    asked = options("--nnodes", "1", "--nproc-per-node", "2", "train.py", ELASTIC_MIN="1", ELASTIC_MAX="9")
    assert (asked.min, asked.max) == (2, 2)
    asked = options("train.py", ELASTIC_MIN="1", ELASTIC_MAX="9", PET_NNODES="1", PET_NPROC_PER_NODE="2")
    assert (asked.min, asked.max, asked.nproc) == (1, 9, 2)


# --- where the nodes meet ---


@pytest.mark.parametrize(
    ("flags", "endpoint"),
    [
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head"], Endpoint("head", 29400)),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "[::1]:81"], Endpoint("::1", 81)),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "h:0", "--node-rank", "1"], Endpoint("h", 0)),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1", "--rdzv-conf", "is_host=0"], Endpoint("h", 1, False)),
        (["--master-addr", "h", "--node-rank", "0"], Endpoint("h", 29500, True)),
        (["--master-addr", "h", "--master-port", "5", "--node-rank", "2"], Endpoint("h", 5, False)),
        (["--master-addr", "fd00::1", "--master-port", "5"], Endpoint("fd00::1", 5)),
        (["--master-port", "5"], Endpoint("127.0.0.1", 5)),
        (["--rdzv-endpoint", "h:7", "--rdzv-conf", "rank=1"], Endpoint("h", 7, False)),
        (["--endpoint", "h:7"], Endpoint("h", 7)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_endpoint_or_a_master_is_where_the_nodes_meet(flags: list[str], endpoint: Endpoint) -> None:
    size = ["--max", "2"] if flags[0] == "--endpoint" else ["--nnodes", "1:2"]
    asked = options(*size, *flags, "train.py")
    assert asked.endpoint == endpoint
    assert asked.urls == () and asked.address is None


def test_one_node_with_a_master_s_port_serves_there_and_joins_nobody() -> None:
    assert options("--nproc-per-node", "2", "--master-port", "5", "train.py").endpoint == Endpoint("127.0.0.1", 5, True)


def test_node_ranks_order_the_ranks_of_static_nodes_alone() -> None:
    line = ["--nnodes", "3", "--rdzv-endpoint", "h:1", "--node-rank", "2", "train.py"]
    assert options(*line).node == 2
    assert options("--rdzv-backend", "c10d", *line).node == -1
    assert options("train.py").node == -1


def test_standalone_and_a_server_have_the_word_before_an_endpoint_in_variables() -> None:
    pod = {"PET_RDZV_ENDPOINT": "a:1", "PET_RDZV_BACKEND": "etcd", "PET_NNODES": "2"}
    asked = options("--rendezvous", "http://b:2", "train.py", **pod)
    assert asked.endpoint is None and asked.urls == ("http://b:2",) and asked.max == 2
    asked = options("--standalone", "train.py", PET_RDZV_ENDPOINT="a:1", PET_NNODES="1")
    assert asked.endpoint is None and asked.serves
    asked = options("--rdzv-endpoint", "a:1", "train.py", ELASTIC_STANDALONE="0")
    assert asked.endpoint == Endpoint("a", 1, True)


def test_an_endpoint_on_the_command_line_wins_over_a_server_in_a_variable() -> None:
    asked = options("--rdzv-endpoint", "a:1", "train.py", ELASTIC_RENDEZVOUS="http://b:2")
    assert asked.endpoint == Endpoint("a", 1, True) and asked.urls == ()


def test_a_pod_of_kubeflow_s_knows_its_job_by_its_variables() -> None:
    elastic = {"PET_NNODES": "1:3", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "digits-worker-0:29400"}
    assert options("train.py", **POD, **elastic).endpoint == Endpoint("digits-worker-0", 29400)
    fixed = {"PET_NNODES": "2", "PET_MASTER_ADDR": "digits-master-0", "PET_MASTER_PORT": "23456", "PET_NODE_RANK": "1"}
    assert options("train.py", **POD, **fixed).endpoint == Endpoint("digits-master-0", 23456, False)
    assert options("train.py", **POD, PET_NNODES="1").serves


def test_the_conf_s_timeouts_are_ours() -> None:
    asked = options("--rdzv-conf", "join_timeout=7, read_timeout=8,last_call_timeout=1", "train.py")
    assert (asked.min_timeout, asked.rendezvous_timeout) == (7, 8)


# --- workers ---


def test_what_a_worker_runs() -> None:
    assert options("--no-python", "true", "x").command == ("true", "x")
    Path("tool").write_text("#!/bin/sh\n")
    Path("tool").chmod(0o755)
    assert options("tool").command[0] == "tool"
    assert options("--run-path", "tool", "a").command[0] == sys.executable
    assert options("--run-path", "--no-python", "tool", "a").command[-2:] == ("tool", "a")


def test_scripts_may_have_another_interpreter() -> None:
    asked = options("train.py", "a", PYTHON_EXEC="/bin/true")
    assert asked.program == Program("executable", "/bin/true", ("-u", "train.py", "a")) and asked.restarts
    assert options("-m", "json.tool", PYTHON_EXEC="/bin/true").program == Program(
        "executable", "/bin/true", ("-u", "-m", "json.tool")
    )
    Path("train.py").write_text("import elastic_launch")
    asked = options("train.py", PYTHON_EXEC="/bin/true")
    assert asked.command == ("/bin/true", "-u", "-m", "elastic_launch.trainer.main", "train.py") and not asked.restarts


def test_role_restarts_and_devices_reach_the_options() -> None:
    asked = parse(
        ["--role", "r", "--virtual-local-rank", "--numa-binding", "node", "--max-restarts", "0", "train.py"], GPUS
    )
    assert (asked.role, asked.virtual_local_rank, asked.numa_binding, asked.max_restarts) == ("r", True, "node", 0)
    assert options("train.py").max_restarts == 3
    assert not options("train.py", PET_VIRTUAL_LOCAL_RANK="0").virtual_local_rank


def test_signals_on_which_the_workers_leave() -> None:
    assert options("train.py").drain_signals == (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    asked = options("--signals-to-handle", "SIGTERM,SIGINT,usr1", "train.py")
    assert asked.drain_signals == (signal.SIGTERM, signal.SIGUSR1)


def test_the_time_to_shut_down_may_come_from_torch_s_variable() -> None:
    assert options("train.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="4").shutdown_timeout == 4
    assert options("train.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="4", PET_SHUTDOWN_TIMEOUT="5").shutdown_timeout == 5


# --- what cannot be ---

BAD = [
    (["--nnodes", "4:2"], "--nnodes is '4:2': give a number of nodes, or MIN:MAX such as 1:4"),
    (["--nnodes", "0"], "--nnodes is '0': give a number of nodes"),
    (["--nnodes", "1:2:3"], "--nnodes is '1:2:3': give a number of nodes"),
    (["--nnodes", "2"], "--nnodes is '2', but nothing says where the nodes meet: give --rdzv-endpoint HOST:PORT"),
    (["--nnodes", "1:4", "--rdzv-backend", "c10d"], "nothing says where the nodes meet"),
    (["--nnodes", "2", "--node-rank", "1"], "nothing says where the nodes meet"),
    (["--nproc-per-node", "xpu"], "--nproc-per-node is 'xpu', but only NVIDIA GPUs are counted: give a number"),
    (["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e:2379"], "Run `elastic-rendezvous --store etcd://e:2379`"),
    (["--rdzv-backend", "etcd"], "--rdzv-backend is 'etcd': agents do not speak to etcd"),
    (["--rdzv-backend", "mine"], "--rdzv-backend is 'mine': give c10d or static, or a server of this project's"),
    (["--rdzv-endpoint", "a:b"], "--rdzv-endpoint: 'a:b' is no HOST:PORT"),
    (["--rdzv-endpoint", "a:70000"], "--rdzv-endpoint: 'a:70000' is no HOST:PORT"),
    (["--rdzv-endpoint", "http://a:1"], "--rdzv-endpoint: 'http://a:1' is no HOST:PORT"),
    (["--rdzv-endpoint", "a:1", "--rendezvous", "http://b:1"], "both say where the agents meet: leave one of them out"),
    (["--rdzv-endpoint", "a:1", "--port", "5"], "--port is for the server in this agent"),
    (["--endpoint", "a:1"], "--endpoint is for the agents of several hosts: say how many workers there may be, with --max"),
    (["--rdzv-id", "a/b"], "--rdzv-id: 'a/b' cannot be a job's name"),
    (["--rdzv-conf", "join_timeout"], "--rdzv-conf is 'join_timeout': give KEY=VALUE"),
    (["--rdzv-conf", "jion_timeout=3"], "--rdzv-conf has 'jion_timeout', which is not known: there are close_timeout,"),
    (["--rdzv-conf", "is_host=perhaps"], "--rdzv-conf is_host is 'perhaps': give 1 or 0"),
    (["--rdzv-conf", "store_type=file"], "--rdzv-conf store_type is 'file': agents meet over the network"),
    (["--rdzv-conf", "join_timeout=soon"], "--rdzv-conf join_timeout is 'soon': give a number of seconds above 0"),
    (["--nnodes", "2", "--master-addr", "a", "--node-rank", "x"], "--node-rank is 'x': give a whole number of at least 0"),
    (["--monitor-interval", "often"], "--monitor-interval is 'often': give a number"),
    (["--start-method", "exec"], "--start-method is 'exec': give spawn, fork or forkserver"),
    (["--event-log-handler", "scuba"], "--event-log-handler is 'scuba': give null or console (handlers are registered"),
    (["--numa-binding", "core"], "--numa-binding is 'core': give node, socket, exclusive or core-complex"),
    (["--numa-binding", "node"], "--numa-binding binds workers near their GPUs, but this host has no NVIDIA GPU"),
    (["--signals-to-handle", "SIGTERM,SIGNO"], "--signals-to-handle: 'SIGNO' is no signal: give names such as"),
    (["--signals-to-handle", "SIGKILL"], "--signals-to-handle: SIGKILL cannot be handled: leave it out"),
    (["--local-addr", "203.0.113.7"], "'203.0.113.7' is not an address of this host"),
    (["--standalone", "--nnodes", "4:2"], "--nnodes is '4:2'"),
    (["-m", "--no-python"], "-m runs a Python module: leave out --no-python and --run-path, or -m"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_what_cannot_be_is_refused_by_name(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, *flags, "train.py")


def test_other_programs_than_python_bind_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--numa-binding", "node", "true", **GPUS)
    assert "--numa-binding is for Python scripts: put `numactl` in front of 'true' instead" in message


def test_a_variable_is_named_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "PET_NNODES is '2', but nothing says where" in refusal(capsys, "train.py", PET_NNODES="2")
    assert "PET_STANDALONE is 'maybe': give 1 or 0" in refusal(capsys, "train.py", PET_STANDALONE="maybe")
    assert "PET_RDZV_ENDPOINT: 'a:b' is no" in refusal(capsys, "train.py", PET_RDZV_ENDPOINT="a:b")


@pytest.mark.parametrize("action", ACTIONS, ids=[action.dest for action in ACTIONS])
def test_torchrun_takes_the_values_that_are_tried_here(action: argparse.Action) -> None:
    value = VALUES[action.dest]
    arguments = [action.option_strings[0]] if value is None else [action.option_strings[0], value]
    assert getattr(get_args_parser().parse_args([*arguments, "train.py"]), action.dest)
