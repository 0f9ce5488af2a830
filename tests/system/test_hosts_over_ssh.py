"""One launcher and several hosts, as with horovodrun: real agents over a real sshd, each loopback address a host."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .launching import Command, Lab, wait_for, wait_until_gone
from .networks import Network, reason_without_networks
from .sshd import Sshd, reason_without_sshd, sshd_program

REASON = reason_without_sshd()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.xdist_group("sshd")]
STEADY = {"open_ended": True, "pause": 0.03}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    sshd = Sshd(tmp_path_factory.mktemp("sshd") / "server", sshd_program())
    yield sshd
    sshd.close()


class Discovery:
    """A host discovery script, and what it prints."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self.script = folder / "discover_hosts.sh"
        self.runs('cat "$(dirname "$0")/hosts"')
        self.script.chmod(0o755)

    def lists(self, *hosts: str) -> None:
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text("".join(host + "\n" for host in hosts))
        fresh.rename(self._hosts)

    def runs(self, command: str) -> None:
        fresh = self.script.with_suffix(".new")
        fresh.write_text(f"#!/bin/sh\n{command}\n")
        fresh.chmod(0o755)
        fresh.rename(self.script)


@pytest.fixture
def discovery(tmp_path: Path) -> Discovery:
    return Discovery(tmp_path)


def everything(launcher: Command, sshd: Sshd) -> list[psutil.Process]:
    return [*launcher.descendants(), *sshd.processes()]


def test_the_workers_of_the_hosts_of_a_list_train_together(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "3", "-H", f"{first}:2,{second}:2", *sshd.flags, epochs=3)
    lab.wait_for_world(3)
    assert [len(sshd.agents(host)) for host in (first, second)] == [1, 1]
    left = everything(launcher, sshd)
    assert launcher.wait() == 0
    wait_until_gone(left)
    lab.assert_exact(members=3)
    assert lab.world_size() == 3
    for host in (first, second):
        assert f"[elastic-launch {host}] job 'default' is done" in launcher.output


def test_a_hostfile_may_name_this_host_which_needs_no_ssh(lab: Lab, sshd: Sshd, tmp_path: Path) -> None:
    other = sshd.hosts[0]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"# two hosts\nlocalhost slots=1\n\n{other}:1\n")
    launcher = lab.launch("--hostfile", str(hostfile), "--min-np", "2", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    assert len(sshd.agents(other)) == 1
    assert len(sshd.agents("127.0.0.1")) == 0
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=2)
    assert "[elastic-launch localhost] job 'default' is done" in launcher.output


def test_a_list_may_name_this_host_alone(lab: Lab) -> None:
    launcher = lab.launch("-np", "2", "-H", "localhost:2", epochs=2)
    assert launcher.wait() == 0
    lab.assert_exact(members=2)


def test_hosts_that_the_script_lists_come_and_those_that_it_drops_go_with_nothing_redone(
    lab: Lab, sshd: Sshd, discovery: Discovery
) -> None:
    first, second, third, *_ = sshd.hosts
    discovery.lists(f"{first}:1")
    launcher = lab.launch(
        "-np", "1", "--max-np", "3", "--host-discovery-script", str(discovery.script), *sshd.flags, **STEADY
    )
    lab.wait_for_world(1)
    discovery.lists(f"{first}:1", f"{second}:1", third)
    lab.wait_for_world(3)
    discovery.lists(f"{second}:1", third)
    lab.wait_for_world(2)
    wait_for(lambda: not sshd.agents(first), 10, f"the end of the agent on {first}")
    discovery.lists(f"{second}:1", third, f"{first}:1")
    lab.wait_for_world(3)
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=3)
    lab.assert_nothing_redone()
    assert "has failed" not in launcher.output


def test_a_hosts_slots_may_change_while_it_trains(lab: Lab, sshd: Sshd, discovery: Discovery) -> None:
    host = sshd.hosts[0]
    discovery.lists(f"{host}:1")
    launcher = lab.launch(
        "-np", "1", "--max-np", "2", "--host-discovery-script", str(discovery.script), *sshd.flags, **STEADY
    )
    lab.wait_for_world(1)
    agents = sshd.agents(host)
    discovery.lists(f"{host}:3")  # more than the job takes
    lab.wait_for_world(2)
    discovery.lists(f"{host}:1")
    lab.wait_for_world(1)
    discovery.lists(f"{host}:2")
    lab.wait_for_world(2)
    assert sshd.agents(host) == agents
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=2)
    lab.assert_nothing_redone()


def test_scripts_that_know_nothing_of_it_start_again_when_hosts_and_slots_come(
    lab: Lab, sshd: Sshd, discovery: Discovery
) -> None:
    first, second, *_ = sshd.hosts
    discovery.lists(f"{first}:1")
    flags = ("-np", "1", "--max-np", "4", "--host-discovery-script", str(discovery.script))
    launcher = lab.launch(*flags, *sshd.flags, script="restarted.py")
    journal = lab.folder / "plain.jsonl"

    def starts_in_a_world_of(size: int) -> list[dict[str, str]]:
        entries = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        return [entry for entry in entries if entry["event"] == "start" and entry["WORLD_SIZE"] == str(size)]

    lab.wait(lambda: starts_in_a_world_of(1), 60, "a start alone")
    discovery.lists(f"{first}:2")
    lab.wait(lambda: len(starts_in_a_world_of(2)) == 2, 60, "a start of two")
    assert [entry["LOCAL_WORLD_SIZE"] for entry in starts_in_a_world_of(2)] == ["2", "2"]
    discovery.lists(f"{first}:2", f"{second}:1")
    lab.wait(lambda: len(starts_in_a_world_of(3)) == 3, 60, "a start of three")
    (lab.folder / "finish").touch()
    assert launcher.wait() == 0


def test_an_agent_that_is_drained_on_its_host_is_not_replaced(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "--min-np", "1", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    (agent,) = sshd.agents(second)
    agent.terminate()
    lab.wait_for_text(launcher, f"the agent on {second} was drained: the host is left alone")
    lab.wait_for_world(1)
    lab.wait_for_steps(50)
    assert not sshd.agents(second)
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=1)
    lab.assert_nothing_redone()


def test_a_host_whose_connection_breaks_ends_by_itself_and_is_not_used_again(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "--min-np", "1", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    (agent,) = sshd.agents(second)
    left = [agent, *agent.children(recursive=True)]
    assert len(left) >= 2
    sshd.cut(second)
    wait_until_gone(left, 15)
    lab.wait_for_world(1)
    lab.wait_for_text(launcher, f"host {second} has failed and is not used again")
    lab.wait_for_steps(50)
    assert not sshd.agents(second)
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=1)


def test_a_host_that_dies_comes_back_after_its_cooldown(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    flags = ("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "3", "--max-restarts", "10")
    launcher = lab.launch(*flags, "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    (agent,) = sshd.agents(second)
    left = agent.children(recursive=True)
    for process in (*left, agent):
        process.kill()
    lab.wait_for_text(launcher, f"host {second} has failed and is not used for")
    lab.wait(lambda: sshd.agents(second) not in ([], [agent]), 30, f"another agent on {second}")
    lab.wait_for_world(2)
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=2)


def test_a_job_that_can_do_without_it_starts_without_a_host_that_cannot_be_reached(lab: Lab, sshd: Sshd) -> None:
    host, nobody = sshd.hosts[0], "127.0.0.99"
    flags = ("-np", "2", "--min-np", "1", "--start-timeout", "3", "-H", f"{nobody}:1,{host}:1")
    launcher = lab.launch(*flags, *sshd.flags, **STEADY)
    lab.wait_for_world(1)
    lab.wait_for_text(launcher, f"host {nobody} has failed and is not used again")
    lab.wait_for_text(launcher, "it cannot be reached: ssh: connect to host 127.0.0.99")
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=1)


def test_a_job_ends_when_the_hosts_that_are_left_are_too_few(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    sshd.cut(second)
    assert launcher.wait(30) == 75
    assert (
        "1 slot is left on the hosts that can be used, fewer than the job's min of 2: name more hosts"
        in launcher.output
    )
    wait_until_gone(left, 10)


def test_ctrl_c_stops_the_job_in_order_on_all_hosts(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    launcher.signal(signal.SIGINT)
    assert launcher.wait(30) == 130
    assert "job 'default' was stopped" in launcher.output
    wait_until_gone(left)


def test_a_second_ctrl_c_ends_everything_at_once(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    with lab.held("step"):
        launcher.signal(signal.SIGINT)
        lab.wait_for_text(launcher, "a second one ends everything at once")
        launcher.signal(signal.SIGINT)
        assert launcher.wait(10) == 130
    wait_until_gone(left)


def test_sigterm_lets_the_workers_of_all_hosts_leave(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    launcher = lab.launch("-np", "2", "-H", f"{first}:1,{second}:1", *sshd.flags, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    launcher.signal(signal.SIGTERM)
    assert launcher.wait(30) == 0
    for host in (first, second):
        assert f"[elastic-launch {host}] drained: this agent's workers have left the job" in launcher.output
    wait_until_gone(left)


def test_nothing_is_left_on_any_host_of_a_launcher_that_is_killed(lab: Lab, sshd: Sshd) -> None:
    launcher = lab.launch("-np", "2", "-H", f"{sshd.hosts[0]}:1,localhost:1", *sshd.flags, num_workers=1, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    assert len(left) >= 8
    launcher.signal(signal.SIGKILL)
    wait_until_gone(left, 15)


def test_a_job_whose_workers_change_too_often_ends_with_an_error(lab: Lab, sshd: Sshd, discovery: Discovery) -> None:
    first, second, *_ = sshd.hosts
    discovery.lists(f"{first}:1")
    flags = ("-np", "1", "--reset-limit", "1", "--host-discovery-script", str(discovery.script))
    launcher = lab.launch(*flags, *sshd.flags, **STEADY)
    lab.wait_for_world(1)
    discovery.lists(f"{first}:1", f"{second}:1")
    lab.wait_for_world(2)
    lab.wait_for_steps(10)
    discovery.lists(f"{second}:1")
    assert launcher.wait(30) == 1
    assert "the workers have changed 2 times, and --reset-limit is 1" in launcher.output


def test_the_last_good_answer_of_a_discovery_script_stands_and_its_trouble_is_said_once(
    lab: Lab, sshd: Sshd, discovery: Discovery
) -> None:
    host = sshd.hosts[0]
    discovery.lists(f"{host}:1")
    launcher = lab.launch("-np", "1", "--host-discovery-script", str(discovery.script), *sshd.flags, **STEADY)
    lab.wait_for_world(1)
    for command, trouble in (
        ("echo no way >&2; exit 3", "has failed with exit code 3: no way. Its last good answer stands"),
        ("echo '<html>'", "printed what is no list: '<html>' is no host"),
    ):
        discovery.runs(command)
        lab.wait_for_text(launcher, trouble)
        lab.wait_for_steps(100)
        assert launcher.output.count(trouble) == 1
    discovery.runs(f"echo {host}:1")
    lab.wait_for_text(launcher, "the host discovery script answers again")
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=1)


def test_a_discovery_script_that_fails_at_first_ends_the_job(lab: Lab, discovery: Discovery) -> None:
    discovery.runs("exit 3")
    launcher = lab.launch("-np", "1", "--host-discovery-script", str(discovery.script))
    assert launcher.wait(30) == 2
    assert "has failed with exit code 3. It has to answer once before the job can start" in launcher.output


def test_a_job_that_fails_on_a_host_has_the_exit_code_of_its_worker(lab: Lab, sshd: Sshd) -> None:
    first, second, *_ = sshd.hosts
    flags = ("-np", "2", "--max-restarts", "0", "-H", f"{first}:1,{second}:1")
    launcher = lab.launch(*flags, *sshd.flags, exit_at="5:0:7", **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    assert launcher.wait() == 7
    wait_until_gone(left)
    assert "job 'default' has failed: " in launcher.output


def test_the_failure_of_a_job_on_several_hosts_is_said_once(lab: Lab) -> None:
    """Here the hosts are this one by two names, which needs no sshd."""
    lab.folder.mkdir(parents=True, exist_ok=True)
    flags = ("-np", "2", "--max-restarts", "0", "-H", "localhost:1,127.0.0.1:1")
    launcher = lab.launch(*flags, script="restarted.py")
    lab.wait_for_text(launcher, "rank 1 is here")
    (lab.folder / "crash-1").touch()
    assert launcher.wait() == 1
    assert launcher.output.count("ValueError: rank 1 has no luck") == 2, "as it came, and in the last words"
    assert launcher.output.count("last lines of the worker's output") == 1
    assert launcher.output.count("summary of job") == 1


def test_hosts_on_a_network_find_the_launcher_and_each_other_and_do_without_one_that_falls_silent(
    lab: Lab, tmp_path: Path
) -> None:
    if reason := reason_without_networks():
        pytest.skip(reason)
    network = Network()
    servers: list[Sshd] = []
    try:
        hosts = [network.add_host() for _ in range(2)]
        for host in hosts:
            servers.append(Sshd(tmp_path / host.name, sshd_program(), [host.address], host.inside))
        discovery = Discovery(tmp_path)
        discovery.lists(*(host.address for host in hosts))
        keys = [flag for server in servers for flag in ("-i", str(server.key))]
        shell = f"ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null {' '.join(keys)}"
        ports = {host.address: server.port for host, server in zip(hosts, servers, strict=True)}
        rsh = tmp_path / "rsh"
        cases = "".join(f"{address}) port={port};; " for address, port in ports.items())
        rsh.write_text(f'#!/bin/sh\ncase $1 in {cases}esac\nexec {shell} -p $port "$@"\n')
        rsh.chmod(0o755)
        flags = ("-np", "1", "--max-np", "2", "--shutdown-timeout", "3", "--remote-shell", str(rsh))
        launcher = lab.launch(*flags, "--host-discovery-script", str(discovery.script), inside=network.inside, **STEADY)
        lab.wait_for_world(2)
        places = {psutil.Process(lab.pid_of_rank(rank)).environ()["ELASTIC_ADDRESS"] for rank in (0, 1)}
        assert places == set(ports)
        hosts[1].cut()
        lab.wait_for_world(1)
        lab.wait_for_steps(50)
        lab.finish()
        assert launcher.wait() == 0
        lab.assert_exact(members=1)
    finally:
        for server in servers:
            server.close()
        network.close()


def test_a_remote_shell_that_is_not_there_is_named(lab: Lab) -> None:
    launcher = lab.launch("-H", "127.0.0.2:1", "--remote-shell", "/no/such/rsh -q")
    assert launcher.wait(30) == 2
    assert "host 127.0.0.2 cannot be reached without '/no/such/rsh', which is no program here" in launcher.output


def test_variables_reach_the_workers_and_are_on_no_command_line(lab: Lab, sshd: Sshd) -> None:
    secret = "not-for-everybody"
    flags = ("-np", "1", "-H", f"{sshd.hosts[0]}:1")
    launcher = lab.launch(*flags, *sshd.flags, environment={"WORDS": f"a 'b' \"c\"\n{secret}"}, **STEADY)
    lab.wait_for_world(1)
    for process in everything(launcher, sshd):
        assert secret not in " ".join(process.cmdline())
    worker = psutil.Process(lab.pid_of_rank(0))
    assert worker.environ()["WORDS"] == f"a 'b' \"c\"\n{secret}"
    assert worker.environ()["ELASTIC_HOST"] == sshd.hosts[0]
    assert worker.cwd() == psutil.Process(launcher.process.pid).cwd()
    lab.finish()
    assert launcher.wait() == 0


def test_kubeflows_launcher_container_works_with_its_script_and_its_remote_shell(
    lab: Lab, sshd: Sshd, discovery: Discovery, tmp_path: Path
) -> None:
    """As the MPIJob operator sets it up: discover_hosts.sh, and kubexec.sh, which passes on no standard input."""
    first, second, *_ = sshd.hosts
    kubexec = tmp_path / "kubexec.sh"
    options = "-n -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    kubexec.write_text(f'#!/bin/sh\nset -x\nPOD=$1\nshift\nexec ssh {options} {" ".join(sshd.flags)} $POD -- "$*"\n')
    kubexec.chmod(0o755)
    discovery.runs(f"echo {first}\necho {second}:1")
    environment = {"OMPI_MCA_plm_rsh_agent": str(kubexec), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    flags = ("-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(discovery.script))
    launcher = lab.launch(*flags, environment=environment, **STEADY)
    lab.wait_for_world(2)
    left = everything(launcher, sshd)
    discovery.runs(f"echo {second}:1")
    lab.wait_for_world(1)
    wait_for(lambda: not sshd.agents(first), 10, f"the end of the agent on {first}")
    lab.finish()
    assert launcher.wait() == 0
    lab.assert_exact(members=1)
    lab.assert_nothing_redone()
    wait_until_gone(left)


def test_nothing_is_left_of_agents_without_standard_input_when_their_launcher_is_killed(
    lab: Lab, sshd: Sshd, tmp_path: Path
) -> None:
    options = "-n -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    shell = f"ssh {options} {' '.join(sshd.flags)}"
    launcher = lab.launch("-np", "1", "-H", f"{sshd.hosts[0]}:1", "--remote-shell", shell, **STEADY)
    lab.wait_for_world(1)
    left = everything(launcher, sshd)
    launcher.signal(signal.SIGKILL)
    wait_until_gone(left, 15)
