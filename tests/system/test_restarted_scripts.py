"""Scripts that know nothing of this package: their processes are started again at each change."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from .launching import ROOT, SCRIPTS, Command, Lab, wait_until_gone

Entries = list[dict[str, Any]]


class Plain:
    """What the plain scripts of a lab have written, and how they are told to do something."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = lab.folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def launch(self, *flags: str, **more: Any) -> Command:
        return self.lab.launch(*flags, script="restarted.py", **more)

    def entries(self, event: str = "start") -> Entries:
        path = self.folder / "plain.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def starts(self) -> list[Entries]:
        """The starts of scripts, those of one generation together, in the order of ranks."""
        found: dict[int, Entries] = {}
        for entry in self.entries():
            found.setdefault(int(entry["TORCHELASTIC_RESTART_COUNT"]), []).append(entry)
        return [sorted(found[count], key=lambda entry: int(entry["RANK"])) for count in sorted(found)]

    def wait_for_start(self, world_size: int, after: int = 0) -> Entries:
        """The newest start, once it is one of `world_size` scripts, and behind the restart count `after`."""

        def found() -> Entries | None:
            newest = self.starts()[-1:]
            if newest and int(newest[0][0]["TORCHELASTIC_RESTART_COUNT"]) >= after and len(newest[0]) == world_size:
                return newest[0] if newest[0][0]["WORLD_SIZE"] == str(world_size) else None
            return None

        entries: Entries = self.lab.wait(found, 60, f"a start of {world_size} scripts")
        return entries

    def tell(self, what: str) -> None:
        (self.folder / what).touch()


@pytest.fixture
def plain(lab: Lab) -> Plain:
    return Plain(lab)


def count(entries: Entries) -> int:
    return int(entries[0]["TORCHELASTIC_RESTART_COUNT"])


def test_scripts_get_their_places_in_torchrun_s_words(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--job", "places", "--min", "4", "--max", "4", "--nproc-per-node", "2")
    agents = [plain.launch(*flags, value="r${local_rank}") for _ in range(2)]
    started = plain.wait_for_start(4)
    assert [entry["RANK"] for entry in started] == ["0", "1", "2", "3"]
    assert [entry["LOCAL_RANK"] for entry in started] == ["0", "1", "0", "1"]
    assert [entry["GROUP_RANK"] for entry in started] == ["0", "0", "1", "1"]
    assert [entry["ROLE_RANK"] for entry in started] == ["0", "1", "2", "3"]
    assert [entry["arguments"][-1] for entry in started] == ["r0", "r1", "r0", "r1"]
    for entry in started:
        assert entry["LOCAL_WORLD_SIZE"] == entry["GROUP_WORLD_SIZE"] == "2"
        assert entry["WORLD_SIZE"] == entry["ROLE_WORLD_SIZE"] == "4"
        assert entry["ROLE_NAME"] == "default"
        assert entry["TORCHELASTIC_RUN_ID"] == "places"
        assert entry["TORCHELASTIC_MAX_RESTARTS"] == "3"
        assert entry["OMP_NUM_THREADS"] == "1"
        assert entry["MASTER_ADDR"] == "127.0.0.1"
    told = [json.loads(entry["TF_CONFIG"]) for entry in started]
    assert [one["task"]["index"] for one in told] == [0, 1, 2, 3]
    workers = told[0]["cluster"]["worker"]
    assert len({*workers}) == 4 and all(one["cluster"] == {"worker": workers} for one in told)
    assert len({entry["MASTER_PORT"] for entry in started}) == 1
    plain.tell("finish")
    assert [agent.wait() for agent in agents] == [0, 0]


def test_a_script_that_fails_starts_again_with_all_others_once(plain: Plain) -> None:
    agent = plain.launch("--min", "1", "--max", "3")
    before = plain.wait_for_start(3)
    plain.tell("crash-1")
    after = plain.wait_for_start(3, after=count(before) + 1)
    assert len(plain.starts()) == 2, "one restart, of the same size"
    assert not {entry["pid"] for entry in before} & {entry["pid"] for entry in after}
    assert sorted(entry["RANK"] for entry in plain.entries("terminated")) == ["0", "2"]
    plain.tell("finish")
    assert agent.wait() == 0
    assert agent.output.count("rank 1 has no luck") == 1


def test_scripts_that_fail_together_are_one_crash(plain: Plain) -> None:
    agent = plain.launch("--max", "3", "--max-restarts", "1")
    before = plain.wait_for_start(3)
    for rank in range(3):
        plain.tell(f"crash-{rank}")
    plain.wait_for_start(3, after=count(before) + 1)
    plain.tell("finish")
    assert agent.wait() == 0


def test_more_crashes_than_restarts_fail_the_job_with_the_script_s_own_words(plain: Plain) -> None:
    agent = plain.launch("--max", "2", "--max-restarts", "1")
    before = plain.wait_for_start(2)
    plain.tell("crash-1")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("crash-0")
    assert agent.wait() == 1
    assert "2 crashes, --max-restarts is 1" in agent.output
    last_words = agent.output.partition("has failed")[2]
    assert "ValueError: rank 0 has no luck" in last_words


def test_a_killed_script_starts_again_and_its_signal_is_named(plain: Plain) -> None:
    agent = plain.launch("--max", "2")
    before = plain.wait_for_start(2)
    os.kill(before[1]["pid"], signal.SIGKILL)
    plain.wait_for_start(2, after=count(before) + 1)
    plain.lab.wait_for_text(agent, "SIGKILL")
    plain.tell("finish")
    assert agent.wait() == 0


def test_a_lost_agent_costs_its_scripts_and_one_that_comes_adds_its_own(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "6", "--nproc-per-node", "2", "--max-restarts", "0")
    first = plain.launch(*flags)
    plain.wait_for_start(2)
    second = plain.launch(*flags)
    both = plain.wait_for_start(4)
    assert [entry["GROUP_RANK"] for entry in both] == ["0", "0", "1", "1"]
    left = second.descendants()
    assert len(left) >= 2
    second.signal(signal.SIGKILL)
    wait_until_gone(left)
    alone = plain.wait_for_start(2, after=count(both) + 1)
    assert [entry["RANK"] for entry in alone] == ["0", "1"]
    plain.tell("finish")
    assert first.wait() == 0


def test_the_agent_of_rank_0_can_be_lost(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1")
    first = plain.launch(*flags)
    plain.wait_for_start(1)
    second = plain.launch(*flags)
    both = plain.wait_for_start(2)
    first.signal(signal.SIGKILL)
    alone = plain.wait_for_start(1, after=count(both) + 1)
    assert alone[0]["MASTER_PORT"] != both[0]["MASTER_PORT"]
    plain.tell("finish")
    assert second.wait() == 0


def test_an_agent_that_is_terminated_leaves_and_the_others_go_on_without_it(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1")
    first = plain.launch(*flags)
    plain.wait_for_start(1)
    second = plain.launch(*flags)
    both = plain.wait_for_start(2)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    plain.wait_for_start(1, after=count(both) + 1)
    plain.tell("finish")
    assert second.wait() == 0


def test_below_min_no_script_runs_until_there_are_enough_again(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "2", "--max", "2", "--nproc-per-node", "1")
    first, second = plain.launch(*flags), plain.launch(*flags)
    before = plain.wait_for_start(2)
    second.signal(signal.SIGKILL)
    plain.lab.wait_for_text(first, "generation 2: 1 worker")
    plain.lab.wait(lambda: len(plain.entries("terminated")) == 1, 20, "the end of the script that is left")
    third = plain.launch(*flags)
    plain.wait_for_start(2, after=count(before) + 1)
    assert len(plain.starts()) == 2, "none has run alone"
    plain.tell("finish")
    assert [first.wait(), third.wait()] == [0, 0]


def test_a_script_that_has_ended_well_starts_again_if_another_fails_behind_it(plain: Plain) -> None:
    agent = plain.launch("--max", "2")
    before = plain.wait_for_start(2)
    plain.tell("finish-0")
    plain.lab.wait(lambda: plain.entries("end"), 20, "the end of rank 0")
    (plain.folder / "finish-0").unlink()
    plain.tell("crash-1")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("finish")
    assert agent.wait() == 0
    assert len(plain.entries("end")) == 3


def test_a_script_that_ignores_its_termination_is_killed(plain: Plain) -> None:
    agent = plain.launch("--max", "2", "--shutdown-timeout", "1")
    plain.tell("stubborn")
    before = plain.wait_for_start(2)
    plain.tell("crash-0")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.lab.wait_for_text(agent, "has not ended within 1 s (--shutdown-timeout): killed")
    plain.tell("finish")
    assert agent.wait() == 0


def test_all_agents_may_be_lost_at_once_since_scripts_keep_their_own_state(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "2", "--max", "2", "--nproc-per-node", "1")
    agents = [plain.launch(*flags) for _ in range(2)]
    before = plain.wait_for_start(2)
    for agent in agents:
        agent.signal(signal.SIGKILL)
    others = [plain.launch(*flags) for _ in range(2)]
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("finish")
    assert [agent.wait() for agent in others] == [0, 0]


def test_a_new_leader_s_scripts_go_on(plain: Plain) -> None:
    """A lost server costs nothing while nothing changes."""
    server = plain.lab.serve()
    agent = plain.launch("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "2")
    plain.wait_for_start(2)
    server.signal(signal.SIGKILL)
    plain.lab.wait_for_text(agent, "the rendezvous server is lost")
    assert len(plain.starts()) == 1
    assert not plain.entries("terminated")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_an_agent_that_ends(plain: Plain, number: int) -> None:
    agent = plain.launch("--max", "2", "--shutdown-timeout", "5", environment={"TMPDIR": str(plain.lab.folder)})
    plain.wait_for_start(2)
    left = agent.descendants()
    assert len(left) >= 3, "two scripts and the fork server"
    agent.signal(number)
    assert agent.wait() == {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGKILL: -9}[signal.Signals(number)]
    wait_until_gone(left)
    if number != signal.SIGKILL:
        assert not list(plain.lab.folder.glob("elastic-launch-*"))


def test_the_fork_server_is_replaced(plain: Plain) -> None:
    agent = plain.launch("--max", "2")
    before = plain.wait_for_start(2)
    (forking,) = [
        p
        for p in agent.descendants()
        if "elastic_launch.trainer.fork_server" in " ".join(p.cmdline()) and p.pid not in {e["pid"] for e in before}
    ]
    forking.kill()
    wait_until_gone([forking])
    plain.tell("crash-0")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("finish")
    assert agent.wait() == 0


def test_without_a_usable_fork_server_scripts_start_all_the_same(plain: Plain, tmp_path: Path) -> None:
    """As where a module that is imported ahead opens the GPUs."""
    (tmp_path / "opens_gpus.py").write_text("import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n")
    agent = plain.launch("--max", "2", "--preload", "opens_gpus", environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    before = plain.wait_for_start(2)
    plain.lab.wait_for_text(agent, "has opened the GPUs while it imported, and cannot be forked")
    plain.tell("crash-0")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("finish")
    assert agent.wait() == 0


def test_what_cannot_be_imported_ahead_is_said_and_left_out(plain: Plain, tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    flags = ("--max", "1", "--preload", "broken_module,not_there")
    agent = plain.launch(*flags, environment={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    plain.wait_for_start(1)
    plain.lab.wait_for_text(agent, "broken_module cannot be imported ahead: ZeroDivisionError")
    plain.tell("finish")
    assert agent.wait() == 0


def test_any_program_is_restarted_too(plain: Plain) -> None:
    agent = plain.lab._start(
        Command(
            "elastic_launch.launcher.main",
            ["--max", "2", "bash", "-c", f"exec {sys.executable} {SCRIPTS / 'restarted.py'} --journal {plain.folder}"],
        )
    )
    before = plain.wait_for_start(2)
    plain.tell("crash-0")
    plain.wait_for_start(2, after=count(before) + 1)
    plain.tell("finish")
    assert agent.wait() == 0


def test_a_script_that_joins_by_itself_must_not_be_started_as_one_that_does_not(lab: Lab) -> None:
    agent = lab.launch("--on-change", "restart", "--max-restarts", "0")
    assert agent.wait() == 1
    assert "start it with elastic-launch --on-change in-process" in agent.output


def test_agents_of_both_kinds_do_not_mix(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1")
    first = plain.launch(*flags)
    plain.wait_for_start(1)
    second = plain.lab.launch(*flags)
    assert second.wait() == 78
    assert "see --on-change" in second.output
    plain.tell("finish")
    assert first.wait() == 0


def test_an_agent_that_was_cut_off_comes_back_as_a_joiner(plain: Plain) -> None:
    server = plain.lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "2", "--nproc-per-node", "1")
    first, second = plain.launch(*flags), plain.launch(*flags)
    both = plain.wait_for_start(2)
    psutil.Process(second.process.pid).suspend()
    alone = plain.wait_for_start(1, after=count(both) + 1)
    psutil.Process(second.process.pid).resume()
    plain.wait_for_start(2, after=count(alone) + 1)
    plain.tell("finish")
    assert [first.wait(), second.wait()] == [0, 0]


def test_error_files_of_torch_elastic_are_read(plain: Plain, tmp_path: Path) -> None:
    script = tmp_path / "recorded.py"
    script.write_text(
        "import json, os\n"
        "text = {'message': 'KeyError: nothing here', 'extraInfo': {'py_callstack': 'the stack', 'timestamp': '1'}}\n"
        "json.dump({'message': text}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
        "raise SystemExit(5)\n"
    )
    command = Command("elastic_launch.launcher.main", ["--max-restarts", "0", str(script)])
    agent = plain.lab._start(command)
    assert agent.wait() == 5
    assert "KeyError: nothing here" in agent.output
    assert "  the stack" in agent.output
