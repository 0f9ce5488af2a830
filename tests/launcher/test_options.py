from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elastic_launch.launcher import devices
from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.options import Options
from elastic_launch.launcher.output.routing import Routing, Streams

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
TWO_GPUS = {"CUDA_VISIBLE_DEVICES": "0,1"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", **NO_GPU}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("")
    (tmp_path / "folder").mkdir()
    return path


def options(*arguments: str, **environ: str) -> Options:
    return parse([*arguments], {**NO_GPU, **environ})


BAD = [
    (["--min", "3", "--max", "2"], "--min 3 is above --max 2: raise --max or lower --min"),
    (["--min", "3", "--nproc-per-node", "2"], "--min 3 is above --max 2 (the default: --nproc-per-node)"),
    (["--min", "2"], "--min 2 is above --max 1 (the default: the GPUs of this host, or 1)"),
    (["--min", "0", "--max", "2"], "--min is '0': give a whole number of at least 1"),
    (["--max", "0"], "--max is '0': give a whole number of at least 1"),
    (["--max", "-1"], "--max is '-1': give a whole number of at least 1"),
    (["--max", "many"], "--max is 'many': give a whole number of at least 1"),
    (["--max", "2.5"], "--max is '2.5': give a whole number of at least 1"),
    (
        ["--nproc-per-node", "none"],
        "--nproc-per-node is 'none': give a whole number of at least 1, or auto, gpu or cpu",
    ),
    (["--nproc-per-node", "0"], "--nproc-per-node is '0': give a whole number of at least 1, or auto, gpu or cpu"),
    (["--nproc-per-node", "gpu"], "--nproc-per-node is 'gpu', but this host has no NVIDIA GPU"),
    (["--nproc-per-node", "3", "--max", "2"], "--nproc-per-node 3 is above --max 2: raise --max or lower"),
    (["--max-restarts", "-1"], "--max-restarts is '-1': give a whole number of at least 0"),
    (["--min-timeout", "soon"], "--min-timeout is 'soon': give a number of seconds above 0"),
    (["--hang-timeout", "0"], "--hang-timeout is '0': give a number of seconds above 0"),
    (["--shutdown-timeout", "nan"], "--shutdown-timeout is 'nan': give a number of seconds above 0"),
    (["--token-file", "missing"], "missing' cannot be used: No such file"),
    (["--tls-ca", "ca.pem"], "--tls-ca is for a server that --rendezvous names as https://HOST:PORT"),
    (["--rendezvous", "https://h:1", "--tls-ca", "ca.pem"], "ca.pem' cannot be used: No such file"),
    (
        ["--rendezvous", "https://h:1", "--tls-key", "key.pem"],
        "--tls-key is the key of a certificate: give --tls-cert too",
    ),
    (["--rendezvous-timeout", "inf"], "--rendezvous-timeout is 'inf': give a number of seconds above 0"),
    (["--backend", "mpi"], "--backend is 'mpi': give gloo or tcp"),
    (["--port", "70000"], "--port is 70000: give a port from 1 to 65535, or 0 for any free one"),
    (["--port", "1234", "--rendezvous", "http://h:1"], "--port is for the server in this agent"),
    (["--min", "9" * 5000], "give a whole number of at least 1"),
    (["--rendezvous", "localhost:1234"], "--rendezvous is 'localhost:1234': give it as http://HOST:PORT"),
    (["--rendezvous", "http://localhost"], "--rendezvous is 'http://localhost': give it as http://HOST:PORT"),
    (["--rendezvous", "http://[::1:80"], "give it as http://HOST:PORT"),
    (["--rendezvous", "http://h:1", "--standalone"], "--rendezvous and --standalone contradict each other"),
    (["--job", "a/b"], "--job: 'a/b' cannot be a job's name"),
    (["--network-interface", "nowhere0"], "--network-interface 'nowhere0' does not exist: this host has lo"),
    (["--advertise-address", "203.0.113.7"], "--advertise-address '203.0.113.7' is not an address of this host"),
    (["--advertise-address", "0.0.0.0"], "stands for every address"),
    (["--advertise-address", "a", "--network-interface", "lo"], "say the same thing: leave one of them out"),
    (["--log-dir", "train.py"], "--log-dir is 'train.py', which cannot be used"),
    (["--watch-pods", "digits"], "--watch-pods: 'digits' is no label of this job's pods: give one as in app=digits"),
    (["--watch-pods", "app="], "--watch-pods: 'app=' is no label"),
    (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    (
        ["--max-restrats", "3"],
        "unrecognized arguments: --max-restrats: did you mean --max-restarts? (--help lists the flags)",
    ),
    (["--max_restrats=3"], "--max_restrats=3: did you mean --max-restarts?"),
    (["--nproc-pernode", "3"], "--nproc-pernode: did you mean --nproc-per-node?"),
    (["--rendezvous-url", "x"], "--rendezvous-url: did you mean --rendezvous?"),
    (["--advertise"], "--advertise: did you mean --advertise-address?"),
    (["--qwxz"], "unrecognized arguments: --qwxz (--help lists the flags)"),
    (["--prefix", "long"], "--prefix is 'long': give full, rank, none or time"),
    (["--log-max-size", "big"], "--log-max-size is 'big': give a number of bytes, as in 500000, 100M or 1G"),
    (["--log-files", "0"], "--log-files is '0': give a whole number of at least 1"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_a_bad_flag_ends_with_code_2_and_says_what_to_do(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        options(*flags, "train.py")
    assert ending.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script was given: name what the workers are to run"),
        (["trian.py"], "script 'trian.py' does not exist in "),
        (["my.module"], "(give -m before the name of a module)"),
        (["folder"], "script 'folder' is a folder without __main__.py"),
        (["-m", "no_such_module.train"], "module 'no_such_module.train' cannot be found"),
        (["-m", ""], "cannot be found"),
    ],
)
def test_a_script_that_does_not_exist_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        options(*arguments)
    assert ending.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("train.py", ELASTIC_MAX_RESTARTS="few")
    assert "ELASTIC_MAX_RESTARTS is 'few'" in capsys.readouterr().err


def test_a_flag_wins_over_its_variable() -> None:
    assert options("train.py", ELASTIC_MAX="3").max == 3
    assert options("--max", "4", "train.py", ELASTIC_MAX="3").max == 4
    assert options("train.py", ELASTIC_MAX="").max == 1


def test_the_ring_of_cpu_tensors_is_chosen_by_a_flag_or_a_variable() -> None:
    assert options("--backend", "tcp", "train.py").backend == "tcp"
    assert options("train.py", ELASTIC_BACKEND="tcp").backend == "tcp"
    assert options("train.py").backend == "gloo"


def test_an_agent_that_serves_runs_max_workers() -> None:
    asked = options("--min", "2", "--max", "4", "train.py")
    assert (asked.min, asked.max, asked.nproc, asked.serves, asked.describes_job) == (2, 4, 4, True, True)
    assert asked.address == "127.0.0.1"


def test_max_follows_the_workers_of_this_agent_else_its_gpus_else_1() -> None:
    assert options("--nproc-per-node", "3", "train.py").max == 3
    assert parse(["train.py"], TWO_GPUS).max == 2
    assert options("train.py").max == 1


def test_an_agent_that_joins_runs_one_worker_per_gpu() -> None:
    url = ["--rendezvous", "http://head:29400"]
    assert options(*url, "--max", "8", "train.py").nproc == 1
    assert parse([*url, "--max", "8", "train.py"], TWO_GPUS).nproc == 2
    assert parse([*url, "--max", "1", "train.py"], TWO_GPUS).nproc == 1


def test_an_agent_that_joins_describes_the_job_only_if_it_was_told_to() -> None:
    url = ["--rendezvous", "http://head:29400"]
    assert not options(*url, "train.py").describes_job
    assert options(*url, "--min", "2", "--max", "4", "train.py").describes_job
    assert options(*url, "train.py").address is None


def test_several_servers_are_given_with_commas() -> None:
    asked = options("--rendezvous", "http://a:1, http://[::1]:2/", "train.py")
    assert asked.urls == ("http://a:1", "http://[::1]:2")


@pytest.mark.parametrize(("word", "count"), [("auto", 2), ("gpu", 2), ("cpu", len(os.sched_getaffinity(0)))])
def test_workers_are_counted_from_what_the_host_has(word: str, count: int) -> None:
    assert parse(["--nproc-per-node", word, "train.py"], TWO_GPUS).nproc == count


@pytest.mark.parametrize(
    ("value", "count"), [("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-af, GPU-b0", 2), ("NoDevFiles", 0)]
)
def test_visible_gpus_are_counted(value: str, count: int) -> None:
    assert devices.count_gpus({"CUDA_VISIBLE_DEVICES": value}) == count


def test_a_pod_without_a_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        parse(["train.py"], POD)
    assert ending.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "it would train on its own, beside its peers" in message
    assert "--standalone if that is what you want" in message


def test_a_pod_may_say_that_it_trains_alone_or_where_the_server_is() -> None:
    assert parse(["--standalone", "train.py"], POD).serves
    assert parse(["train.py"], {**POD, "ELASTIC_STANDALONE": "1"}).serves
    assert not parse(["train.py"], {**POD, "ELASTIC_RENDEZVOUS": "http://server:1"}).serves


def test_flags_after_the_script_are_the_script_s() -> None:
    asked = options("--max", "2", "train.py", "--max", "7", "-m", "--", "x")
    assert asked.max == 2
    assert asked.command[-6:] == ("train.py", "--max", "7", "-m", "--", "x")
    assert asked.command[:4] == (sys.executable, "-u", "-m", "elastic_launch.trainer.main")


def test_a_module_is_handed_on_as_one() -> None:
    assert options("-m", "json.tool", "a").command[-3:] == ("--module", "json.tool", "a")


def test_the_address_of_an_interface_is_taken() -> None:
    assert options("--network-interface", "lo", "train.py").address == "127.0.0.1"
    assert (
        options("--advertise-address", "127.0.0.1", "train.py", ELASTIC_NETWORK_INTERFACE="lo").address == "127.0.0.1"
    )


def test_the_log_folder_is_made() -> None:
    asked = options("--log-dir", "a/b", "train.py")
    assert asked.log_dir is not None and asked.log_dir.is_dir() and asked.log_dir.is_absolute()


def test_the_token_is_taken_from_a_file_that_a_flag_or_a_variable_names(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    for given in (options("--token-file", "token", "train.py"), options("train.py", ELASTIC_TOKEN_FILE="token")):
        tokens = given.access.tokens()
        assert tokens is not None and tokens.token() == "open-sesame"
    assert options("train.py").access.tokens() is None


def test_certificates_that_a_variable_names_are_no_error_where_nothing_is_https() -> None:
    access = options("train.py", ELASTIC_TLS_CA="ca.pem").access
    assert access.tls_ca is not None and access.tls(["http://h:1"]) is None


def test_peers_are_watched_where_that_is_asked_for() -> None:
    assert options("--watch-pods", "app=digits", "train.py").watch_pods == "app=digits"
    assert options("train.py", ELASTIC_WATCH_PODS="app=digits,tier!=web").watch_pods == "app=digits,tier!=web"
    assert options("train.py").watch_pods == ""


def test_a_watch_needs_its_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(SystemExit):
        options("--watch-pods", "app=digits", "train.py")
    assert "pip install 'elastic-launch[kubernetes]'" in capsys.readouterr().err


def test_sizes_of_logs_are_given_as_people_write_them() -> None:
    sizes = {"0": 0, "500000": 500000, "100k": 100 << 10, "64M": 64 << 20, "2gb": 2 << 30}
    for text, size in sizes.items():
        assert options("--log-max-size", text, "train.py").output.most_bytes == size


def test_words_of_torchrun_are_understood_whoever_says_them() -> None:
    asked = options("train.py", ELASTIC_TEE="0:3", ELASTIC_REDIRECTS="2", ELASTIC_LOCAL_RANKS_FILTER="0,1")
    assert asked.output.routing == Routing(redirects=Streams.ERR, tee={0: Streams.BOTH}, slots_shown=frozenset({0, 1}))
    assert options("train.py", ELASTIC_DUPLICATE_STDERR_FILTERS="a,b").output.duplicates == {2: ("a", "b")}


def test_files_that_are_asked_for_without_a_place_get_one_of_their_own() -> None:
    folder = options("train.py", ELASTIC_REDIRECTS="3").log_dir
    assert folder is not None and folder.name.startswith("elastic_launch_") and folder.is_dir()
    folder.rmdir()
    assert options("train.py", ELASTIC_REDIRECTS="0").log_dir is None
    assert options("train.py", ELASTIC_REDIRECTS="3", ELASTIC_LOG_DIR="/dev/null").log_dir is None


def test_the_protocol_and_the_summary_are_switched() -> None:
    asked = options("--verbose", "--quiet", "train.py")
    assert asked.verbose and asked.quiet and not asked.output.folds_tracebacks
    asked = options("train.py")
    assert not asked.verbose and not asked.quiet and asked.output.folds_tracebacks


def test_a_port_that_a_variable_gives_is_named_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    for environ, message in (
        ({"ELASTIC_PORT": "70000"}, "ELASTIC_PORT is 70000: give a port"),
        ({"ELASTIC_PORT": "7", "ELASTIC_RENDEZVOUS": "http://h:1"}, "ELASTIC_PORT is for the server in this agent"),
    ):
        with pytest.raises(SystemExit):
            options("train.py", **environ)
        assert message in capsys.readouterr().err
