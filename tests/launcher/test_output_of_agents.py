"""What a person sees and finds of an agent's and its workers' output."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_launch.rendezvous.messages import Exited, Failed
from tests.launcher.running import HERE, ROOT, RunningAgent
from tests.launcher.scripted_server import ScriptedServer, done_when_all_are
from tests.launcher.test_agent import JOIN, let_it_form

StartAgent = Callable[..., RunningAgent]
AS_ANYBODY = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []  # root may write everywhere


@pytest.mark.parametrize(
    ("style", "pattern"),
    [
        ("full", r"\[g0 w0 here\] hello\n"),
        ("rank", r"\[w0\] hello\n"),
        ("none", r"hello\n"),
        ("time", r"\d\d:\d\d:\d\d\.\d\d\d \[g0 w0 here\] hello\n"),
    ],
)
def test_lines_have_the_prefix_that_was_chosen(
    style: str, pattern: str, server: ScriptedServer, start_agent: StartAgent
) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent("print=hello", urls=[server.url], output_words={"prefix": style})
    assert agent.wait() == 0, agent.text()
    assert re.fullmatch(pattern, agent.stdout.decode())
    assert "[elastic-launch here] job 'default' is done" in agent.stderr.decode()


def test_every_byte_comes_through_whatever_the_locale_is(server: ScriptedServer, start_agent: StartAgent) -> None:
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    server.answers.append(done_when_all_are(1))
    environ = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    agent = start_agent(f"raw={data.hex()}0a", urls=[server.url], environ=environ)
    assert agent.wait() == 0
    assert agent.stdout == b"[g0 w0 here] " + data + b"\n"


def test_a_line_of_many_megabytes_comes_through_whole(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    server.answers.append(done_when_all_are(1))
    program = "import sys; sys.stdout.write('x' * 9_000_000 + '\\n' + 'end\\n')"
    agent = start_agent(urls=[server.url], command=[sys.executable, "-c", program], log_dir=str(tmp_path))
    assert agent.wait() == 0
    prefix = b"[g0 w0 here] "
    assert agent.stdout.replace(prefix, b"").replace(b"\n", b"") == b"x" * 9_000_000 + b"end"
    assert agent.stdout.count(prefix) == 3  # cut where it is longer than 8 MiB
    log = tmp_path / "latest" / "here" / "worker-0" / "stdout.log"
    assert log.read_bytes() == b"x" * 9_000_000 + b"\nend\n"


def test_a_slow_console_does_not_slow_the_workers_and_gets_everything(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    """300,000 lines are much more than a pipe, and the memory that is meant for them, take."""
    command = [sys.executable, "-u", "-m", "tests.launcher.scripted_worker", "lines=300000", "exit=3"]
    gate = tmp_path / "read-on"
    console = f'"$@" | (read x; until [ -e {gate} ]; do sleep 0.1; done; echo $x; cat)'
    agent = start_agent(urls=[server.url], command=command, inside=["sh", "-c", console, "sh"])
    server.wait_for(Exited, within=60)  # while nobody reads what it has printed
    assert not agent.stdout
    gate.touch()
    server.say(Failed(3, "enough"))
    agent.wait()
    lines = agent.stdout.decode().splitlines()
    assert lines == [f"[g0 w0 here] line {number}" for number in range(300000)]


def test_logs_are_begun_anew_and_lose_nothing(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    server.answers.append(done_when_all_are(2))
    words = {"log_max_size": "100k", "log_files": "20"}
    agent = start_agent(
        "lines=100000", urls=[server.url], nproc=2, max=2, log_dir=str(tmp_path), job="digits", output_words=words
    )
    assert agent.wait() == 0
    expected = b"".join(b"line %d\n" % number for number in range(100000))
    for slot in range(2):
        folder = tmp_path / "latest" / "here" / f"worker-{slot}"
        files = sorted(
            folder.glob("stdout.log*"), key=lambda file: -int(file.suffix[1:] if file.suffix[1:].isdecimal() else 0)
        )
        assert 10 < len(files) <= 20
        assert b"".join(file.read_bytes() for file in files) == expected
        assert all(file.stat().st_size < 101 * 1024 for file in files)


def test_the_latest_link_leads_to_the_run_s_workers_and_the_agent_s_own_words(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    server.answers.append(done_when_all_are(2))
    for job in ("first", "second"):
        agent = start_agent(f"print={job}", urls=[server.url], log_dir=str(tmp_path), job=job, nproc=2, max=2)
        server.wait_for(Exited, count=2 if job == "first" else 4)
        if job == "first":
            agent.wait()
            server.answers[:] = [done_when_all_are(2)]
    assert agent.wait() == 0, agent.text()
    here = tmp_path / "latest" / "here"
    assert (here / "worker-1" / "stdout.log").read_text() == "second\n"
    assert re.search(
        r"^\d\d:\d\d:\d\d\.\d+ \[elastic-launch here\] job 'second' is done$", (here / "agent.log").read_text(), re.M
    )
    assert f"logs are in {tmp_path}/second/here" in agent.text()


def test_what_is_redirected_is_in_files_only(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    server.answers.append(done_when_all_are(2))
    words = {"redirects": "0:1,1:3", "tee": "1:2"}
    agent = start_agent(
        "print=out", "error=err", urls=[server.url], nproc=2, max=2, log_dir=str(tmp_path), output_words=words
    )
    assert agent.wait() == 0
    workers = [line for line in (agent.stdout + agent.stderr).decode().splitlines() if "elastic-launch" not in line]
    assert sorted(workers) == ["[g0 w0 here] err", "[g0 w1 here] err"]
    here = tmp_path / "latest" / "here"
    found = {str(file.relative_to(here)): file.read_text() for file in here.glob("worker-?/*.log")}
    assert found == {
        "worker-0/stdout.log": "out\n",
        "worker-1/stdout.log": "out\n",
        "worker-1/stderr.log": "err\n",
    }


def test_only_the_workers_that_were_chosen_are_shown_and_the_lines_that_were_filtered_are_in_one_file(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    server.answers.append(done_when_all_are(3))
    words = {"tee": "3", "local_ranks_filter": "0,2", "duplicate_stdout_filters": "apple,loss"}
    agent = start_agent(
        "print=an apple",
        "print=nothing",
        "print=loss 3",
        urls=[server.url],
        nproc=3,
        max=3,
        log_dir=str(tmp_path),
        output_words=words,
    )
    assert agent.wait() == 0
    assert {line.split()[1] for line in agent.stdout.decode().splitlines()} == {"w0", "w2"}
    here = tmp_path / "latest" / "here"
    assert (here / "worker-1" / "stdout.log").read_text() == "an apple\nnothing\nloss 3\n"
    filtered = (here / "filtered_stdout.log").read_text().splitlines()
    assert sorted(filtered) == [f"[g0 w{slot} here] {text}" for slot in (0, 2) for text in ("an apple", "loss 3")]


def test_eight_workers_with_the_same_mistake_show_it_once(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("raise=no such file", urls=[server.url], nproc=8, max=8)
    server.wait_for(Exited, count=8, within=60)
    server.say(Failed(1, "all have failed", "Traceback (most recent call last):\n  here\nValueError: no such file"))
    assert agent.wait() == 1
    live, _, last_words = agent.stderr.decode().partition("job 'default' has failed")
    assert live.count("Traceback (most recent call last)") == 1
    assert live.count("ValueError: no such file") == 8
    assert live.count("(the traceback is the same as that of worker") == 7
    assert last_words.count("Traceback (most recent call last)") == 1


def in_a_terminal(options: str, environ: dict[str, str]) -> str:
    """What a terminal gets from an agent."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        os.execve(
            sys.executable,
            [sys.executable, str(HERE / "run_agent.py"), options],
            {**keep, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environ},
        )
    output = b""
    try:
        while data := os.read(terminal, 65536):
            output += data
    except OSError:
        pass  # it has ended
    os.waitpid(pid, 0)
    os.close(terminal)
    return output.decode()


@pytest.mark.parametrize(
    ("environ", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_prefixes_have_colours_on_a_terminal_that_wants_them(
    environ: dict[str, str], has_colours: bool, server: ScriptedServer
) -> None:
    server.answers.append(done_when_all_are(2))
    command = [sys.executable, "-u", "-m", "tests.launcher.scripted_worker", "print=hello"]
    options = {"command": command, "urls": [server.url], "host": "here", "address": "127.0.0.1", "nproc": 2, "max": 2}
    output = in_a_terminal(json.dumps(options), environ)
    if has_colours:
        assert "\x1b[36m[g0 w0 here]\x1b[0m hello" in output
        assert "\x1b[33m[g0 w1 here]\x1b[0m hello" in output
        assert "\x1b[1m[elastic-launch here]\x1b[0m " in output
    else:
        assert "[g0 w0 here] hello" in output
        assert "\x1b[" not in output


def test_ranks_keep_their_colours_and_slots_are_named_until_there_is_a_rank(
    server: ScriptedServer, start_agent: StartAgent
) -> None:
    agent = start_agent(
        "print=early", *JOIN, "print=late", "exit=3", urls=[server.url], output_words={"prefix": "rank"}
    )
    let_it_form(server, generation=5, rank=3)
    server.wait_for(Exited)
    server.say(Failed(3, "enough"))
    agent.wait()
    assert agent.stdout == b"[w0] early\n[r3] late\n"


def test_a_worker_whose_logs_cannot_be_written_is_not_started(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    (tmp_path / "default" / "here").mkdir(parents=True)
    (tmp_path / "default" / "here" / "agent.log").mkdir()
    (tmp_path / "default" / "here").chmod(0o500)
    agent = start_agent("print=up", urls=[server.url], log_dir=str(tmp_path), inside=AS_ANYBODY)
    assert agent.wait() == 70, agent.text()
    assert b"a worker cannot be started" in agent.stderr and b"Permission denied" in agent.stderr
    assert b"no log of this agent's own can be written" in agent.stderr
    assert b"up" not in agent.stdout
