"""horovodrun's flags: each is in the table, is taken or refused by our parser, and means what the table says."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.flags import horovod_only
from elastic_launch.launcher.flags.parsing import build_parser
from elastic_launch.launcher.hosts.blacklist import Cooldown
from elastic_launch.launcher.hosts.listing import Host
from elastic_launch.launcher.options import Options

from .horovodrun_list import FLAGS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "horovodrun-flags.md"
WHEEL = os.environ.get("ELASTIC_TEST_HOROVOD")  # a wheel of Horovod 0.28.1, where it is not installed
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
BY_NAME = {name: count for names, count in FLAGS for name in names}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("import elastic_launch\n")
    return path


def options(*arguments: str, **environ: str) -> Options:
    return parse([*arguments, "python", "train.py"], {**NO_GPU, **environ})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    with pytest.raises(SystemExit) as ending:
        options(*arguments, **environ)
    assert ending.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def answers() -> dict[str, str]:
    """What the table says of each flag: taken, agreed, warned or refused."""
    rows = re.findall(r"^\| (`-.*?`) \| (\w+) \|", TABLE.read_text(), re.MULTILINE)
    return {name: answer for names, answer in rows for name in re.findall(r"`(-[^`]+)`", names)}


def values(name: str) -> list[str]:
    given = {"--output-filename": ["logs"], "--log-level": ["INFO"], "--network-interfaces": ["lo"]}
    given |= {
        "--network-interface": ["lo"],
        "-H": ["h:4"],
        "--hosts": ["h:4"],
        "--blacklist-cooldown-range": ["1", "2"],
    }
    if name in ("-hostfile", "--hostfile"):
        Path("hostfile").write_text("h slots=4\n")
        return ["hostfile"]
    if name == "--config-file":
        Path("config.yaml").write_text("")
        return ["config.yaml"]
    if name in ("-i", "--ssh-identity-file"):
        return ["train.py"]
    return given.get(name, ["1"] * BY_NAME[name])


NEEDS_HOSTS = {"-p", "--ssh-port", "-i", "--ssh-identity-file", "--reset-limit", "--blacklist-cooldown-range"}


def test_the_table_has_each_flag_and_no_other() -> None:
    assert sorted(answers()) == sorted(BY_NAME)


def test_the_list_is_that_of_horovodruns_own_parser(tmp_path: Path) -> None:
    paths = [str(ROOT)]
    if WHEEL:
        zipfile.ZipFile(WHEEL).extractall(tmp_path / "horovod")
        paths.append(str(tmp_path / "horovod"))
    elif importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: ELASTIC_TEST_HOROVOD may name its wheel")
    environ = {**os.environ, "PYTHONPATH": ":".join(paths)}
    asking = [sys.executable, "-m", "tests.launcher.horovodrun_parser"]
    found = json.loads(subprocess.run(asking, env=environ, check=True, capture_output=True, timeout=60).stdout)
    assert sorted((tuple(names), count) for names, count in found) == sorted(FLAGS)


def test_our_parser_knows_each_flag_with_as_many_values() -> None:
    ours = build_parser()._option_string_actions
    counts = {name: 1 if ours[name].nargs is None else ours[name].nargs for name in BY_NAME if name in ours}
    assert counts == BY_NAME


@pytest.mark.parametrize("name", [name for name, answer in answers().items() if answer != "refused"])
def test_a_flag_that_is_not_refused_is_taken_with_a_warning_where_the_table_says_so(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["-H", "h:1"] if name in NEEDS_HOSTS else []
    if name in ("-h", "--help", "-v", "--version", "-cb", "--check-build"):
        with pytest.raises(SystemExit) as ending:
            options(name)
        assert ending.value.code == 0
        return
    options(name, *values(name), *hosts)
    warned = f"warning: {name} has no effect: " in capsys.readouterr().err
    assert warned == (answers()[name] == "warned")


@pytest.mark.parametrize("name", [name for name, answer in answers().items() if answer == "refused"])
def test_a_flag_that_is_refused_says_why(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reason = next(only.why for only in horovod_only.FLAGS if name in only.flags)
    assert f"error: {name}: {reason}" in refusal(capsys, *([f"{name}=--x"] if BY_NAME[name] else [name]))


def sizes(asked: Options) -> tuple[int, int, int]:
    return asked.min, asked.max, asked.nproc


def test_np_alone_is_a_fixed_number_of_workers_of_this_host() -> None:
    assert sizes(options("-np", "3")) == (3, 3, 3)
    assert sizes(options("--num-proc", "3")) == (3, 3, 3)


def test_np_within_a_range_is_what_this_host_runs() -> None:
    assert sizes(options("-np", "2", "--min-np", "1", "--max-np", "4")) == (1, 4, 2)
    assert sizes(options("-np", "2", "--max-np", "4")) == (2, 4, 2)
    assert sizes(options("-np", "2", "--min-np", "1")) == (1, 2, 2)


def test_np_of_an_agent_that_joins_is_the_jobs_and_slots_per_host_its_own() -> None:
    url = ("--rendezvous", "http://h:1")
    assert sizes(options(*url, "-np", "8", "--slots-per-host", "4")) == (8, 8, 4)
    assert sizes(options(*url, "-np", "8")) == (8, 8, 1)
    assert sizes(options("-np", "8", "--slots-per-host", "4", ELASTIC_RENDEZVOUS="http://h:1")) == (8, 8, 4)


MEETING: list[tuple[list[str], dict[str, str]]] = [
    (["--endpoint", "h:1"], {}),
    (["--rdzv-endpoint", "h:1"], {}),
    (["--rdzv-endpoint", "h:1", "--rdzv-backend", "c10d"], {}),
    (["--master-addr", "h"], {}),
    (["--node-rank", "1", "--master-addr", "h"], {}),
    (["--rendezvous", "http://h:1"], {}),
    ([], {"ELASTIC_ENDPOINT": "h:1"}),
    ([], {"ELASTIC_RENDEZVOUS": "http://h:1"}),
    ([], {"PET_RDZV_ENDPOINT": "h:1"}),
    ([], {"PET_RDZV_ENDPOINT": "h:1", "PET_NNODES": "2"}),
    ([], {"PET_MASTER_ADDR": "h"}),
]


@pytest.mark.parametrize(("flags", "environ"), MEETING, ids=[" ".join([*f, *e]) for f, e in MEETING])
def test_np_counts_the_workers_of_all_agents_that_meet_however_they_do(
    flags: list[str], environ: dict[str, str]
) -> None:
    assert sizes(options("-np", "4", *flags, **environ)) == (4, 4, 1)
    assert sizes(options("-np", "4", *flags, **{**environ, "CUDA_VISIBLE_DEVICES": "0,1"})) == (4, 4, 2)
    assert sizes(options("-np", "4", "--max-np", "6", "--slots-per-host", "2", *flags, **environ)) == (4, 6, 2)


def test_np_of_an_agent_that_meets_nobody_is_its_own_in_torchruns_company() -> None:
    assert sizes(options("-np", "4", "--standalone", PET_RDZV_ENDPOINT="h:1")) == (4, 4, 4)
    assert sizes(options("-np", "4", PET_NNODES="1")) == (4, 4, 4)


def test_np_beside_nodes_is_taken_where_both_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", "h:1")
    assert sizes(options(*nodes, "-np", "4")) == (4, 4, 2)
    why = "contradicts --nnodes, which says with --nproc-per-node that the workers are"
    assert f"-np 3 {why} 4 in all: leave out --nnodes or -np" in refusal(capsys, *nodes, "-np", "3")
    assert f"-np 4 {why} 2 to 4 in all" in refusal(capsys, *nodes, "--nnodes", "1:2", "-np", "4")
    assert f"-np 3 {why} 1 in all" in refusal(capsys, "--nnodes", "1", "-np", "3")


def test_hosts_bound_the_job() -> None:
    assert sizes(options("-H", "h1:2,h2:2"))[:2] == (1, 4)
    assert sizes(options("-np", "3", "-H", "h1:2,h2:2"))[:2] == (3, 3)
    assert sizes(options("-np", "3", "--min-np", "2", "-H", "h1:2,h2:2"))[:2] == (2, 4)
    assert sizes(options("-np", "2", "--host-discovery-script", "d"))[:2] == (2, 65536)
    assert sizes(options("-np", "2", "--max-np", "6", "--host-discovery-script", "d"))[:2] == (2, 6)
    assert sizes(options("--min", "2", "--max", "3", "-H", "h1:2,h2:2"))[:2] == (2, 3)
    assert sizes(options("-np", "2", ELASTIC_HOST_DISCOVERY_SCRIPT="d"))[:2] == (2, 65536)


def test_hosts_of_a_list_a_file_and_a_script() -> None:
    Path("hostfile").write_text("h1 slots=2\nh2\n")
    listed = options("-H", "h1:2,h2", "--slots-per-host", "4").hosts
    read = options("--hostfile", "hostfile", "--slots-per-host", "4").hosts
    scripted = options("--host-discovery-script", "./d --all", "--slots", "4").hosts
    assert listed is not None and read is not None and scripted is not None
    assert listed.fixed == read.fixed == (Host("h1", 2), Host("h2", 4))
    assert (scripted.script, scripted.slots, scripted.fixed) == ("./d --all", 4, ())


def test_what_is_asked_of_the_hosts() -> None:
    flags = ("--blacklist-cooldown-range", "10", "100", "--reset-limit", "3", "--network-interfaces", "lo,eth7")
    asked = options("-H", "h:1", *flags).hosts
    assert asked is not None
    assert (asked.cooldown, asked.reset_limit, asked.interfaces) == (Cooldown(10, 100), 3, "lo,eth7")


def test_times_have_this_launchers_names_and_horovods_variables() -> None:
    asked = options("--start-timeout", "5", "--elastic-timeout", "7", "--stall-check-shutdown-time-seconds", "9")
    assert (asked.rendezvous_timeout, asked.min_timeout, asked.hang_timeout) == (5, 7, 9)
    asked = options(HOROVOD_START_TIMEOUT="5", HOROVOD_ELASTIC_TIMEOUT="7", HOROVOD_LOG_LEVEL="DEBUG")
    assert (asked.rendezvous_timeout, asked.min_timeout, asked.log_level) == (5, 7, logging.DEBUG)
    assert options("--start-timeout", "6", HOROVOD_START_TIMEOUT="5").rendezvous_timeout == 6
    assert options("--no-stall-check").hang_timeout == 7 * 24 * 3600


def test_verbose_and_log_level() -> None:
    assert options().shown_level == logging.WARNING
    assert options("--verbose").shown_level == logging.DEBUG
    assert options("--verbose", "--log-level", "ERROR").shown_level == logging.ERROR


@pytest.mark.parametrize("name", ["-prefix-timestamp", "--log-with-timestamp", "--no-log-hide-timestamp"])
def test_lines_carry_the_time_where_horovods_flags_ask_for_it(name: str) -> None:
    assert options(name).output.prefix == "time"
    assert options(name, "--prefix", "rank").output.prefix == "rank"
    Path("config.yaml").write_text("logging: {with_timestamp: true}\n")
    assert options("--config-file", "config.yaml").output.prefix == "time"
    Path("config.yaml").write_text("logging: {with_timestamp: false}\n")
    assert options("--config-file", "config.yaml").output.prefix == "full"


def test_output_goes_to_the_log_folder() -> None:
    assert options("--output-filename", "out").log_dir == Path.cwd() / "out"


CONFIG = """\
controller: gloo
params:
  fusion_threshold_mb: 32
stall_check:
  shutdown_time_seconds: 40
logging:
  level: INFO
"""


def test_a_configuration_file_is_taken_as_far_as_it_has_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text(CONFIG)
    asked = options("--config-file", "config.yaml")
    assert (asked.hang_timeout, asked.log_level) == (40, logging.INFO)
    assert "warning: params.fusion_threshold_mb in config.yaml has no effect" in capsys.readouterr().err
    assert options("--config-file", "config.yaml", "--log-level", "ERROR").log_level == logging.ERROR


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("controller: mpi", "asks for the controller 'mpi': there is no MPI here"),
        ("parms: {}", "has 'parms': give controller, params, autotune"),
        ("params: {fusion: 1}", "has params.fusion: give cache_capacity"),
        ("- 1", "holds [1]: give a mapping"),
        ("a: [", ". Correct it there"),
    ],
)
def test_a_configuration_file_that_is_none_is_refused(
    content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.yaml").write_text(content)
    assert message in refusal(capsys, "--config-file", "config.yaml")


BAD: list[tuple[list[str], str]] = [
    (["-np", "two"], "-np is 'two': give a whole number of at least 1"),
    (["-np", "2", "--min-np", "3"], "--min-np 3 is above -np 2"),
    (["-np", "4", "--max-np", "3"], "-np 4 is above --max-np 3"),
    (["-np", "4", "--max", "3", "--min", "1"], "-np 4 is above --max 3: raise --max or lower -np"),
    (
        ["-np", "5", "-H", "h1:2,h2:2"],
        "the hosts have 4 slots, fewer than the 5 workers that the job needs at least: name more hosts",
    ),
    (["-H", "h1:0"], "'h1:0' has no number of slots after the colon"),
    (["-H", "-oProxyCommand=x:1"], "expected one argument"),
    (["-H=-oProxyCommand=x:1"], "'-oProxyCommand=x:1' is no host"),
    (["-H", ","], "-H names no host"),
    (["--hostfile", "none"], "--hostfile is 'none', which cannot be read: No such file or directory. Check the path"),
    (["-H", "h:1", "--host-discovery-script", "d"], "-H and --host-discovery-script both name the hosts"),
    (["-H", "h:1", "--rendezvous", "http://h:1"], "-H makes this the launcher that serves the job, but --rendezvous"),
    (
        ["--reset-limit", "3"],
        "--reset-limit is for hosts that -H, --hostfile or --host-discovery-script name: give one of these, or leave"
        " --reset-limit out",
    ),
    (["-H", "h:1", "--reset-limit", "-1"], "--reset-limit is '-1': give a whole number of at least 0"),
    (["-H", "h:1", "--blacklist-cooldown-range", "9", "3"], "--blacklist-cooldown-range is '9 3': give the least"),
    (["-H", "h:1", "-p", "ssh"], "-p (--ssh-port) is 'ssh': give a port"),
    (
        ["-H", "h:1", "-i", "none"],
        "-i (--ssh-identity-file) is 'none', which cannot be read: give the path of your private key",
    ),
    (["-H", "h:1", "-p", "22", "--remote-shell", "rsh"], "--remote-shell says the whole command"),
    (
        ["-H", "h:1", "--remote-shell", "'"],
        "--remote-shell is \"'\", which the shell's rules do not allow: No closing quotation. Correct the quotes",
    ),
    (["--log-level", "LOUD"], "--log-level: 'LOUD' is no level: give one of TRACE"),
    (
        ["--config-file", "none"],
        "--config-file is 'none', which cannot be read: No such file or directory. Check the path",
    ),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_what_cannot_work_is_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, *flags)


def test_in_a_pod_named_hosts_are_enough() -> None:
    assert options("-H", "h:1", KUBERNETES_SERVICE_HOST="10.0.0.1").hosts is not None


@pytest.mark.parametrize("beginning", ["-c", "-n", "-hostf", "-prefix"])
def test_the_beginning_of_a_name_with_one_dash_is_not_that_flag(
    beginning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        parse([beginning, "3", "train.py"], NO_GPU)
    assert ending.value.code == 2
    assert "PyTorch" not in capsys.readouterr().out


def test_a_value_may_follow_a_flag_of_one_letter_at_once() -> None:
    hosts = options("-Hh:1", "-p22").hosts
    assert hosts is not None
    assert (hosts.fixed, "-p 22" in " ".join(hosts.shell.command)) == ((Host("h", 1),), True)


def test_check_build_names_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["-cb"], {})
    output: Any = capsys.readouterr().out
    assert "[X] PyTorch" in output
    assert "[X] Gloo" in output
    assert "[ ] MPI" in output


@pytest.mark.skipif(importlib.util.find_spec("horovod") is not None, reason="Horovod is installed")
def test_a_script_that_trains_with_horovod_is_refused_where_there_is_none_with_the_ways_out(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("import horovod.torch as hvd\n")
    said = refusal(capsys, "-np", "2")
    assert "imports horovod, which this Python does not have: --horovod runs it on the rings of this package" in said
    assert options("-np", "2", "--on-change", "restart").restarts
    assert not options("-np", "2", "--horovod").restarts
    script.write_text("import horovod.torch as hvd\nimport elastic_launch\n")
    assert not options("-np", "2").restarts


def test_a_script_that_trains_with_an_installed_horovod_is_led_by_its_elastic_mode_or_started_again(
    script: Path,
) -> None:
    def kind(*flags: str) -> tuple[bool, bool]:
        found = options("-np", "2", *flags)
        return found.real_horovod, found.restarts

    (script.parent / "horovod").mkdir()
    (script.parent / "horovod" / "__init__.py").touch()
    script.write_text("import horovod.torch as hvd\nhvd.init()\n")
    assert kind() == (True, True)
    assert kind("--on-change", "in-process") == (True, False)
    assert kind("--horovod") == (False, False)
    script.write_text("import horovod.torch as hvd\n@hvd.elastic.run\ndef train(state): pass\n")
    assert kind() == (True, False)
    assert kind("--on-change", "restart") == (True, True)
    script.write_text("from horovod.tensorflow.elastic import run\n")
    assert kind() == (True, False)


def test_what_is_about_horovods_core_is_told_to_the_real_one(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--fusion-threshold-mb", "2", "--cycle-time-ms", "5", "--autotune", "--gloo-timeout-seconds", "9")
    assert options("-np", "2", *given).horovods_variables == {}
    assert "--cycle-time-ms has no effect" in capsys.readouterr().err
    (script.parent / "horovod").mkdir()
    (script.parent / "horovod" / "__init__.py").touch()
    script.write_text("import horovod.torch as hvd\nhvd.init()\n")
    assert options("-np", "2", *given).horovods_variables == {
        "HOROVOD_FUSION_THRESHOLD": "2097152",
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "9",
    }
    assert "has no effect" not in capsys.readouterr().err
    assert "--fusion-threshold-mb is 'much': give a whole number" in refusal(
        capsys, "-np", "2", "--fusion-threshold-mb", "much"
    )
