"""A Slurm cluster of one's own: real daemons, each node a host with its own name, network and processes.

A node is a set of namespaces with a slurmd in it; the controller and the submitting host are one more. Nothing is
installed, nothing listens outside of the namespaces, and nobody has to be known to anybody: Slurm's `auth/none`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.system.launching import LIBC, PR_SET_PDEATHSIG, ROOT, Command, wait_for
from tests.system.networks import Host, Network, reason_without_networks

UNPACKED = ROOT / ".venv" / "debian"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_CONTROLLER = "head"

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={controller}({address})
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
KillWait={kill_wait}
NodeName=DEFAULT CPUs=4 RealMemory=1000
{nodes}
PartitionName=work Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=1 GraceTime={kill_wait}
PartitionName=urgent Nodes=ALL State=UP MaxTime=60 PriorityTier=10
"""


@dataclass(frozen=True)
class Node:
    """One host of the cluster; `inside` runs a command there, seeing what the host's own processes see."""

    name: str
    address: str
    inside: tuple[str, ...]


class Cluster:
    """A controller and `count` nodes, n1, n2, ...; everything in `folder`. It is up when `__init__` has returned."""

    KILL_WAIT = 20  # seconds between SIGTERM and SIGKILL

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.commands: list[Command] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._firsts: dict[str, subprocess.Popen[bytes]] = {}
        self._binaries = _binaries()
        self._network = Network()
        try:
            self.head = self._start_host(_CONTROLLER, self._network.address, self._network.inside)
            self._hosts = [self._network.add_host() for _ in range(count)]
            self.nodes = [self._start_node(number, host) for number, host in enumerate(self._hosts, 1)]
            self._configure()
            self._serve(self.head, "slurmctld", "-D")
            for node in self.nodes:
                self._serve_node(node)
            wait_for(self._is_up, 60, "all nodes of the Slurm cluster")
        except BaseException:
            self.close()
            raise

    # --- what a user does ---

    def ask(self, program: str, *arguments: str) -> str:
        """The output of one of Slurm's commands, on the submitting host."""
        asked = subprocess.run(
            [*self.head.inside, str(self._binaries[program]), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert asked.returncode == 0, f"{program} {' '.join(arguments)}: {asked.stdout}{asked.stderr}"
        return asked.stdout

    def run(self, *arguments: str) -> Command:
        """srun, in the foreground of the submitting host."""
        command = Command(
            "tests.slurm.passing_on",
            [str(self._binaries["srun"]), *arguments],
            self._environment(),
            inside=self.head.inside,
        )
        self.commands.append(command)
        return command

    def submit(self, script: str, *flags: str) -> int:
        """sbatch; the job's number. Its output is in `output_of`."""
        file = self.folder / f"job-{len(list(self.folder.glob('job-*.sh')))}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        flags = (f"--output={self.folder}/out-%A_%a.txt", "--open-mode=append", *flags)
        return int(self.ask("sbatch", "--parsable", *flags, str(file)).split(";")[0])

    def output_of(self, job: int | str) -> str:
        files = sorted(self.folder.glob(f"out-{str(job).partition('_')[0]}_*.txt"))
        return "".join(file.read_text(errors="replace") for file in files)

    def about_job(self, job: int | str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.ask("scontrol", "show", "job", str(job))))

    def wait_for_job(self, job: int | str, state: str, limit: float = 60) -> dict[str, str]:
        try:
            wait_for(lambda: self.about_job(job)["JobState"] == state, limit, f"job {job} to be {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.about_job(job)}:\n{self.output_of(job)[-6000:]}") from None
        return self.about_job(job)

    def wait_for_node(self, name: str, state: str, limit: float) -> None:
        """`state` is a part of its state's name, such as down in down*."""
        wait_for(lambda: state in self.ask("sinfo", "--noheader", f"--nodes={name}", "--format=%T"), limit, state)

    def current_job(self) -> int:
        """The number of the only job that has not ended."""
        numbers = self.ask("squeue", "--noheader", "--format=%A").split()
        assert len(numbers) == 1, numbers
        return int(numbers[0])

    def kill(self, node: Node, pid: int, number: int) -> None:
        """A signal to a process, by its number on that node."""
        subprocess.run([*node.inside, "kill", f"-{number}", str(pid)], check=True, timeout=10)

    def processes(self, node: Node, pattern: str) -> list[int]:
        """The numbers, on that node, of its processes whose command line contains `pattern`."""
        listed = subprocess.run(
            [*node.inside, "ps", "-eo", "pid=,args="], check=True, capture_output=True, text=True, timeout=10
        )
        lines = [line.split(None, 1) for line in listed.stdout.splitlines()]
        return [int(pid) for pid, command in lines if pattern in command]

    @contextlib.contextmanager
    def crashed(self, node: Node) -> Iterator[None]:
        """Inside it, every process of the node is dead; Slurm finds out by itself."""
        first = self._firsts.pop(node.name)
        first.kill()
        first.wait(10)
        gone = [daemon for daemon in self._daemons if daemon is first or node.inside[2] in daemon.args]
        for daemon in gone:
            daemon.wait(10)
            self._daemons.remove(daemon)
        yield
        place = self.nodes.index(node)
        self.nodes[place] = self._start_node(place + 1, self._hosts[place])
        self._serve_node(self.nodes[place])

    # --- coming and going ---

    def reset(self) -> None:
        """No job, every node in service."""
        for command in self.commands:
            command.end()
        self.commands.clear()
        self.ask("scancel", "--quiet", "--user=root")
        for node in self.nodes:
            for pid in self.processes(node, "elastic_launch"):
                subprocess.run([*node.inside, "kill", "-9", str(pid)], check=False, capture_output=True, timeout=10)
        wait_for(lambda: not self.ask("squeue", "--noheader").split(), 60, "the end of all jobs")
        for line in self.ask("sinfo", "--noheader", "--Node", "--partition=work", "--format=%N %T").splitlines():
            name, state = line.split()
            if "drain" in state or "down" in state:
                self.ask("scontrol", "update", f"nodename={name}", "state=resume")
        wait_for(self._is_up, 30, "all nodes in service")

    def close(self) -> None:
        for command in self.commands:
            command.end()
        for daemon in reversed(self._daemons):
            daemon.kill()
        for daemon in self._daemons:
            daemon.wait(10)
        self._network.close()

    def _start_node(self, number: int, host: Host) -> Node:
        return self._start_host(f"n{number}", host.address, host.inside)

    def _start_host(self, name: str, address: str, inside: Iterable[str]) -> Node:
        """Its first process lives as long as the host; with it goes every other one."""
        hosts = self.folder / "hosts"
        prepare = f"hostname {name} && mount --bind {hosts} /etc/hosts && echo up && exec sleep infinity"
        hosts.touch()
        first = subprocess.Popen(
            [*inside, "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", prepare],
            stdout=subprocess.PIPE,
            preexec_fn=_die_with_us,
        )
        self._daemons.append(first)
        self._firsts[name] = first
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n", f"host {name} cannot be made"
        child = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()[0]
        return Node(name, address, ("nsenter", "--target", child, "--net", "--uts", "--pid", "--mount"))

    def _configure(self) -> None:
        everybody = [self.head, *self.nodes]
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in everybody)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        for name in ("state", *(f"spool-{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir()
        # Named, because a machine without cgroups is no place to look for their version; nothing uses them.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                controller=_CONTROLLER,
                address=self.head.address,
                plugins=self._binaries["plugins"],
                folder=self.folder,
                kill_wait=self.KILL_WAIT,
                nodes="\n".join(f"NodeName={node.name} NodeAddr={node.address}" for node in self.nodes),
            )
        )

    def _serve_node(self, node: Node) -> None:
        self._serve(node, "slurmd", "-D", "-N", node.name, "-d", str(self._binaries["slurmstepd"]))

    def _serve(self, host: Node, program: str, *arguments: str) -> None:
        log = self.folder / f"{program}-{host.name}.out"
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                [*host.inside, str(self._binaries[program]), *arguments],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_us,
            )
        self._daemons.append(daemon)

    def _environment(self) -> dict[str, str]:
        unpacked = UNPACKED / _LIBRARIES
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        path = f"{self._binaries['scontrol'].parent}:{kept.get('PATH', '')}"
        ours = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": path,
        }
        return {**kept, **ours, "LD_LIBRARY_PATH": f"{unpacked}:{unpacked}/slurm-wlm"}

    def _is_up(self) -> bool:
        dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
        assert not dead, f"ended: {dead}; see {self.folder}: {_last_words(self.folder)}"
        answer = subprocess.run(
            [
                *self.head.inside,
                str(self._binaries["sinfo"]),
                "--noheader",
                "--Node",
                "--partition=work",
                "--format=%T",
            ],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=30,
        )
        return answer.stdout.split() == ["idle"] * len(self.nodes)


def reason_without_slurm() -> str:
    """Why there can be no cluster here; empty if there can."""
    if sys.platform != "linux" or not shutil.which("nsenter") or not shutil.which("unshare"):
        return "a Slurm cluster of namespaces needs Linux with util-linux"
    missing = [program for program, path in _binaries().items() if not path.exists()]
    if missing:
        return f"Slurm is not here ({', '.join(missing)} missing): on Debian or Ubuntu `make slurm` gets it"
    return reason_without_networks()


def _binaries() -> dict[str, Path]:
    """Debian's Slurm, unpacked by .ci/get-slurm, or installed."""
    base = UNPACKED if (UNPACKED / "usr/sbin/slurmctld-wlm").exists() else Path("/")
    found = {name: base / "usr/sbin" / f"{name}-wlm" for name in ("slurmctld", "slurmd", "slurmstepd")}
    for name in ("srun", "sbatch", "scancel", "scontrol", "squeue", "sinfo"):
        found[name] = base / "usr/bin" / name
    return {**found, "plugins": base / _LIBRARIES / "slurm-wlm"}


def _die_with_us() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def _last_words(folder: Path) -> str:
    return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-800:]}" for file in folder.glob("slurm*.*"))
