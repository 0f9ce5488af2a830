"""An agent as a real process, with real workers, at a server that says what the test wants."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from elastic_launch.rendezvous.messages import (
    Announce,
    Done,
    Drain,
    Evicted,
    Exited,
    Failed,
    Finished,
    Formed,
    Hello,
    JobSpec,
    Leaving,
    Message,
    Place,
    Ready,
    Refused,
    Registered,
    Release,
    Released,
    Restart,
    Started,
    Stop,
)
from tests.launcher.running import HERE, ROOT, RunningAgent, lives, wait_for_pid, wait_until
from tests.launcher.scripted_server import ScriptedServer, done_when_all_are, fail_on_a_crash

StartAgent = Callable[..., RunningAgent]
JOIN = ("register", "ready", "form")


def announce(worker: str, rank: int = 0, generation: int = 1) -> Announce:
    return Announce(generation, 2, [Place(worker, rank)], "127.0.0.1:9", "secret")


def let_it_form(server: ScriptedServer, generation: int = 1, rank: int = 0) -> str:
    """Takes the one worker into a generation; its nonce."""
    worker = server.wait_for(Ready)[-1].worker
    server.say(announce(worker, rank, generation))
    server.wait_for(Formed)
    server.say(Release(generation))
    return worker


def test_a_script_that_never_joins_runs_to_its_end(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(2))
    agent = start_agent("print=hello", "error=world", urls=[server.url], nproc=2, max=2)
    assert agent.wait() == 0, agent.text()
    assert sorted(agent.stdout.splitlines()) == [b"[g0 w0 here] hello", b"[g0 w1 here] hello"]
    assert b"[g0 w0 here] world\n" in agent.stderr and b"[g0 w1 here] world\n" in agent.stderr


def test_an_agent_says_who_it_is_and_what_the_job_is(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent("exit=0", urls=[server.url], min=1, max=3, nproc=1, max_restarts=7, min_timeout=5.0)
    assert agent.wait() == 0
    (hello,) = server.wait_for(Hello)
    assert hello.spec == JobSpec(1, 3, 7, 5.0, hang_timeout=300.0, shutdown_timeout=30.0)
    assert hello.host == "here" and hello.meeting.startswith("127.0.0.1:")
    assert [started.local_rank for started in server.wait_for(Started)] == [0]


def test_an_agent_without_a_say_in_the_job_sends_no_description(
    server: ScriptedServer, start_agent: StartAgent
) -> None:
    server.answers.append(done_when_all_are(1))
    assert start_agent("exit=0", urls=[server.url], describes_job=False).wait() == 0
    assert server.wait_for(Hello)[0].spec is None


def test_lines_are_labelled_with_generation_and_rank(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("print=early", *JOIN, "print=late", "finish", "await-done", urls=[server.url])
    let_it_form(server, generation=5, rank=3)
    server.wait_for(Finished)
    server.say(Done())
    assert agent.wait() == 0, agent.text()
    assert agent.stdout == b"[g0 w0 here] early\n[g5 r3 here] late\n"


def test_only_a_worker_s_own_place_is_handed_to_it(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "finish", "await-done", urls=[server.url], nproc=2, max=2)
    first, second = (ready.worker for ready in server.wait_for(Ready, count=2))
    server.say(Announce(1, 2, [Place(first, 1), Place(second, 0)], "127.0.0.1:9", "secret", reason="all are here"))
    server.wait_for(Formed, count=2)
    agent.wait_for_text("generation 1: 2 workers (all are here)")
    server.say(Release(1))
    server.wait_for(Finished, count=2)
    server.say(Done())
    assert agent.wait() == 0, agent.text()
    assert [exited.kind for exited in server.wait_for(Exited, count=2)] == ["done", "done"]


def test_a_crash_is_reported_with_its_step_and_last_lines(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(fail_on_a_crash)
    agent = start_agent("step=17", "raise=too bad", urls=[server.url])
    assert agent.wait() == 1
    (exited,) = server.wait_for(Exited)
    assert (exited.code, exited.kind, exited.step, exited.local_rank) == (1, "crash", 17, 0)
    assert exited.tail.splitlines()[0].startswith("Traceback")
    assert exited.tail.splitlines()[-1] == "ValueError: too bad"
    last_words = agent.stderr.decode().partition("job 'default' has failed: a worker crashed: \n")[2]
    assert "[elastic-launch here]   ValueError: too bad\n" in last_words
    assert last_words.endswith("[elastic-launch here] exit code 1\n")
    assert "in step 17: exit code 1" in agent.stderr.decode()


@pytest.mark.parametrize(
    ("steps", "code", "reason"),
    [
        (["exit=3"], 3, ""),
        (["kill=9"], 137, ""),
        (["kill=11"], 139, ""),
        (["register", "quit=0"], 1, "exited with code 0 in the middle of the job, without having finished its script"),
    ],
)
def test_the_agent_exits_with_the_code_of_the_worker_that_failed_the_job(
    steps: list[str], code: int, reason: str, server: ScriptedServer, start_agent: StartAgent
) -> None:
    server.answers.append(fail_on_a_crash)
    agent = start_agent(*steps, urls=[server.url])
    assert agent.wait() == code, agent.text()
    assert server.wait_for(Exited)[0].reason == reason


def test_a_crashed_worker_is_started_again_as_another_one(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    def restart(message: Message) -> Message | None:
        if isinstance(message, Exited) and message.kind == "crash":
            return Restart(message.local_rank, delay=0.3)
        return None

    server.answers += [restart, done_when_all_are(2)]
    agent = start_agent(f"once={tmp_path / 'crashed'}:exit=3", "print=well", urls=[server.url], nproc=2, max=2)
    assert agent.wait() == 0, agent.text()
    assert agent.stdout.count(b"well") == 2
    started = server.wait_for(Started, count=3)
    assert len({message.worker for message in started}) == 3
    assert "a fresh worker starts in 0.3 s" in agent.stderr.decode()


def test_a_reconnecting_agent_tells_everything_again(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "finish", "await-done", urls=[server.url])
    worker = let_it_form(server, generation=4)
    server.wait_for(Finished)
    server.hang_up()
    hello = server.wait_for(Hello, count=2)[1]
    (claim,) = hello.workers
    assert (claim.worker, claim.phase, claim.lineage, claim.formed) == (worker, "finished", 4, 4)
    assert hello.announced == 4
    agent.wait_for_text("connected to the rendezvous server again")
    server.say(Done())
    assert agent.wait() == 0, agent.text()


def test_an_unanswered_exit_is_said_again_to_a_new_connection(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("exit=3", urls=[server.url])
    server.wait_for(Exited)
    server.hang_up()
    first, second = server.wait_for(Exited, count=2)
    assert first == second
    server.say(Failed(3, "enough"))
    assert agent.wait() == 3


def test_nonsense_of_a_worker_is_shown_and_ignored(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent("say-nonsense", "print=still here", urls=[server.url])
    assert agent.wait() == 0
    assert b"still here" in agent.stdout
    assert b"has sent what cannot be understood" in agent.stderr


def test_done_is_enough_for_an_agent_that_comes_late(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(lambda message: Done() if isinstance(message, Hello) else None)
    agent = start_agent("register", "await-done", urls=[server.url])
    assert agent.wait() == 0, agent.text()


def test_a_worker_that_does_not_end_after_done_is_killed(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("deaf", "register", "sleep", urls=[server.url], shutdown_timeout=0.5)
    server.wait_for(Registered)
    server.say(Done())
    assert agent.wait() == 0, agent.text()
    assert b"killing the workers that have not ended within --shutdown-timeout" in agent.stderr


def test_a_drained_worker_leaves_and_the_agent_exits_0(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(lambda message: Released(message.worker) if isinstance(message, Leaving) else None)
    agent = start_agent(*JOIN, "await-released", urls=[server.url])
    worker = let_it_form(server)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert server.wait_for(Leaving) == [Leaving(worker)]
    assert server.wait_for(Exited)[0].kind == "left"


def test_a_hang_up_drains_like_a_termination(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(lambda message: Released(message.worker) if isinstance(message, Leaving) else None)
    agent = start_agent(*JOIN, "await-released", urls=[server.url])
    let_it_form(server)
    agent.signal(signal.SIGHUP)
    assert agent.wait() == 0, agent.text()


def test_a_worker_that_has_not_joined_is_ended_by_a_drain(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("print=up", "sleep", urls=[server.url])
    agent.wait_for_text("up")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert server.wait_for(Exited)[0].kind == "left"


def test_a_worker_that_ignores_a_drain_is_killed_in_time(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("deaf", *JOIN, "sleep", urls=[server.url], shutdown_timeout=0.5)
    let_it_form(server)
    began = time.monotonic()
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0, agent.text()
    assert 0.5 <= time.monotonic() - began < 10
    assert b"drained, but not in order within 0.5 s" in agent.stderr


def test_no_worker_is_restarted_in_a_drain(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "sleep", urls=[server.url], nproc=1, shutdown_timeout=1.0)
    let_it_form(server)
    agent.signal(signal.SIGTERM)
    server.wait_for(Leaving)
    server.say(Restart(0))
    assert agent.wait() == 0
    assert len(server.wait_for(Started)) == 1


def test_a_drain_by_the_server_lets_the_agent_stay(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "await-released", urls=[server.url])
    worker = let_it_form(server)
    server.say(Drain(worker))
    server.say(Released(worker))
    assert server.wait_for(Exited)[0].kind == "left"
    server.say(Restart(0))
    assert len(server.wait_for(Started, count=2)) == 2
    server.say(Failed(75, "too few"))
    assert agent.wait() == 75


def test_an_interrupt_stops_the_job_in_order(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "await-released", urls=[server.url])
    worker = let_it_form(server)
    agent.signal(signal.SIGINT)
    agent.wait_for_text("a second one ends this agent at once")
    assert server.wait_for(Stop)[0].code == 130
    server.say(Drain(worker))
    server.say(Released(worker))
    server.wait_for(Exited)
    server.say(Failed(130, "stopped"))
    assert agent.wait() == 130, agent.text()
    assert b"job 'default' was stopped" in agent.stderr


def test_a_second_interrupt_ends_at_once(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("deaf", *JOIN, "sleep", urls=[server.url])
    let_it_form(server)
    workers = agent.descendants()
    agent.signal(signal.SIGINT)
    server.wait_for(Stop)
    began = time.monotonic()
    agent.signal(signal.SIGINT)
    assert agent.wait() == 130, agent.text()
    assert time.monotonic() - began < 10
    assert not any(lives(process.pid) for process in workers)


def test_an_evicted_worker_that_answers_lives_on(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent(*JOIN, "form", "finish", "await-done", urls=[server.url])
    worker = let_it_form(server)
    server.say(Evicted(worker, "it was silent"))
    agent.wait_for_text("was evicted: it was silent")
    server.say(announce(worker, generation=2))
    server.wait_for(Formed, count=2)
    server.say(Release(2))
    server.wait_for(Finished)
    server.say(Done())
    assert agent.wait() == 0, agent.text()


def test_a_refused_agent_says_why(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(lambda message: Refused("--max is 4 there") if isinstance(message, Hello) else None)
    agent = start_agent("sleep", urls=[server.url])
    assert agent.wait() == 78, agent.text()
    assert b"the rendezvous server refused this agent: --max is 4 there" in agent.stderr


def test_an_agent_whose_workers_do_not_fit_gives_up(server: ScriptedServer, start_agent: StartAgent) -> None:
    agent = start_agent("register", "error=shapes differ", "exit=65", urls=[server.url])
    assert agent.wait() == 65, agent.text()
    assert server.wait_for(Exited)[0].kind == "rejected"
    assert b"none of this agent's workers fits job 'default'" in agent.stderr
    assert b"shapes differ" in agent.stderr


def test_a_server_that_nothing_answers_is_looked_for_and_then_given_up(start_agent: StartAgent) -> None:
    agent = start_agent("sleep", urls=["http://127.0.0.1:9"], rendezvous_timeout=1.0)
    began = time.monotonic()
    assert agent.wait() == 69, agent.text()
    assert time.monotonic() - began >= 0.5
    assert b"no rendezvous server has answered at http://127.0.0.1:9" in agent.stderr


def test_a_name_that_is_not_known_is_looked_for_and_then_given_up(start_agent: StartAgent) -> None:
    agent = start_agent("sleep", urls=["http://no-such-host.invalid:9"], rendezvous_timeout=1.0, address=None)
    assert agent.wait() == 69, agent.text()
    assert b"there is no way to http://no-such-host.invalid:9" in agent.stderr


def test_workers_go_on_without_a_server(start_agent: StartAgent, tmp_path: Path) -> None:
    server = ScriptedServer()
    agent = start_agent(*JOIN, "sleep", urls=[server.url], rendezvous_timeout=2.0)
    let_it_form(server)
    server.close()
    agent.wait_for_text("the workers go on without it")
    time.sleep(3.5)
    assert agent.process.poll() is None
    agent.signal(signal.SIGINT)
    agent.wait_for_text("a second one ends this agent at once")
    agent.signal(signal.SIGINT)
    assert agent.wait() == 130


def test_an_agent_without_server_and_workers_gives_up(start_agent: StartAgent) -> None:
    server = ScriptedServer()
    agent = start_agent("exit=3", urls=[server.url], rendezvous_timeout=5.0)
    server.wait_for(Exited)
    server.close()
    assert agent.wait() == 69, agent.text()
    assert b"and no worker trains here" in agent.stderr


def test_the_worker_s_environment_says_who_it_is(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(1))
    names = ["ELASTIC_LOCAL_RANK", "ELASTIC_LOCAL_WORLD_SIZE", "ELASTIC_JOB", "ELASTIC_HOST", "ELASTIC_ADDRESS"]
    foreign = ["RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"]
    agent = start_agent(
        *(f"environ={name}" for name in names + foreign),
        urls=[server.url],
        job="digits",
        environ=dict.fromkeys(foreign, "7"),
    )
    assert agent.wait() == 0
    said = dict(line.removeprefix("[g0 w0 here] ").split(" is ") for line in agent.stdout.decode().splitlines())
    assert said == dict(zip(names, ["0", "1", "digits", "here", "127.0.0.1"], strict=True)) | dict.fromkeys(
        foreign, "None"
    )


@pytest.mark.parametrize(("nproc", "given", "expected"), [(1, None, "None"), (2, None, "1"), (2, "5", "5")])
def test_workers_that_share_a_host_get_one_thread_each(
    nproc: int,
    given: str | None,
    expected: str,
    server: ScriptedServer,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    server.answers.append(done_when_all_are(nproc))
    environ = {"OMP_NUM_THREADS": given} if given else {}
    agent = start_agent("environ=OMP_NUM_THREADS", urls=[server.url], nproc=nproc, max=nproc, environ=environ)
    assert agent.wait() == 0
    assert agent.stdout.decode().count(f"OMP_NUM_THREADS is {expected}\n") == nproc


def test_output_goes_to_files_too(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent(
        "print=hello", "raw=ff000a", "error=oops", urls=[server.url], job="digits", log_dir=str(tmp_path)
    )
    assert agent.wait() == 0
    nonce = server.wait_for(Started)[0].worker[:8]
    folder = tmp_path / "digits" / "here" / f"worker-0-{nonce}"
    assert (folder / "stdout.log").read_bytes() == b"hello\n\xff\x00\n"
    assert (folder / "stderr.log").read_bytes() == b"oops\n"


def test_a_flood_of_lines_comes_through_whole_and_in_order(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(2))
    agent = start_agent("lines=100000", urls=[server.url], nproc=2, max=2)
    assert agent.wait() == 0
    lines = agent.stdout.decode().splitlines()
    for slot in range(2):
        prefix = f"[g0 w{slot} here] "
        ours = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert ours == [f"line {number}" for number in range(100000)]


def test_the_last_line_needs_no_newline(server: ScriptedServer, start_agent: StartAgent) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent("raw=6c617374", urls=[server.url])
    assert agent.wait() == 0
    assert agent.stdout == b"[g0 w0 here] last\n"


def test_an_escaped_process_that_keeps_the_pipe_does_not_hold_the_end(
    server: ScriptedServer, start_agent: StartAgent, tmp_path: Path
) -> None:
    server.answers.append(done_when_all_are(1))
    agent = start_agent(f"escape={tmp_path / 'pid'}", urls=[server.url])
    assert agent.wait() == 0, agent.text()
    escaped = wait_for_pid(tmp_path / "pid")
    assert lives(escaped)
    os.kill(escaped, signal.SIGKILL)


def test_a_worker_s_children_end_with_it(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(f"child={tmp_path / 'pid'}", "kill=9", urls=[server.url])
    server.wait_for(Exited)
    child = wait_for_pid(tmp_path / "pid")
    wait_until(lambda: not lives(child), "the child has ended")
    server.say(Failed(1, "enough"))
    agent.wait()


def test_adopted_orphans_are_reaped(server: ScriptedServer, start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(f"escape={tmp_path / 'pid'}", "exit=0", urls=[server.url], adopts=True)
    server.wait_for(Exited)
    orphan = psutil.Process(wait_for_pid(tmp_path / "pid"))
    wait_until(lambda: orphan.ppid() == agent.pid, "the orphan is adopted")
    orphan.kill()
    wait_until(lambda: not orphan.is_running(), "the orphan is reaped")
    server.say(Failed(3, "enough"))
    assert agent.wait() == 3


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with 64 MiB, for processes that write themselves down in it."""
    first_version = Path("/sys/fs/cgroup/memory")
    root = first_version if first_version.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"elastic-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if root == first_version else "memory.max"
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    wait_until(lambda: (group / "cgroup.procs").read_text() == "", "the group is empty")
    group.rmdir()


def test_a_kill_for_memory_is_called_one(server: ScriptedServer, start_agent: StartAgent, small_memory: Path) -> None:
    server.answers.append(fail_on_a_crash)
    agent = start_agent(f"fill-memory={small_memory}", urls=[server.url])
    assert agent.wait() == 137, agent.text()
    assert server.wait_for(Exited)[0].reason == "the kernel killed it for memory"


def test_ipv6_works_throughout(start_agent: StartAgent) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    agent = start_agent("environ=ELASTIC_ADDRESS", *JOIN, "finish", "await-done", address="::1")
    assert agent.wait() == 0, agent.text()
    assert b"at http://[::1]:" in agent.stderr
    assert b"ELASTIC_ADDRESS is ::1" in agent.stdout


def test_output_that_nobody_reads_holds_up_nothing_else(server: ScriptedServer, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "tests.launcher.scripted_worker", "register", "lines=2000000", "sleep"]
    options = {
        "command": command,
        "urls": [server.url],
        "host": "here",
        "address": "127.0.0.1",
        "shutdown_timeout": 0.5,
    }
    agent = start_reading_nothing(options)
    try:
        server.wait_for(Registered)
        time.sleep(1.0)  # for the worker to fill everything that there is to fill
        agent.send_signal(signal.SIGTERM)
        server.wait_for(Leaving, within=20)
        server.wait_for(Exited, within=20)
        assert agent.wait(20) == 0
    finally:
        agent.kill()
        agent.communicate()


def start_reading_nothing(options: dict[str, object]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "run_agent.py"), json.dumps(options)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
