"""A real OpenSSH server for several loopback addresses, each a host of its own: no password, keys made for the test.

Debian's sshd is unpacked by `make sshd`, not installed. It wants a user `sshd` and /run/sshd: it gets both in a mount namespace.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from .launching import as_from_a_terminal

_FETCHED = Path(__file__).parents[2] / ".venv" / "debian"
_LIBRARIES = ":".join(str(_FETCHED / folder) for folder in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
_ADDRESSES = [f"127.0.0.{number}" for number in range(2, 6)]
_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
Port {port}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
LogLevel ERROR
"""


class Sshd:
    """It listens at `hosts` on `port`; `key` opens it. `inside` is a command that runs another one, as in a namespace."""

    def __init__(
        self, folder: Path, program: str, hosts: Sequence[str] = _ADDRESSES, inside: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True)
        self.hosts = hosts
        self._inside = inside
        self.key = folder / "user_key"
        self.port = _free_port()
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        addresses = "".join(f"ListenAddress {address}\n" for address in self.hosts)
        (folder / "config").write_text(_CONFIG.format(folder=folder, port=self.port) + addresses)
        users = Path("/etc/passwd").read_text()
        (folder / "passwd").write_text(users + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        words = [program, "-D", "-e", "-f", str(folder / "config")]
        script = (
            f"mount --bind {shlex.quote(str(folder / 'passwd'))} /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd"
            f" && exec env LD_LIBRARY_PATH={shlex.quote(_LIBRARIES)} {shlex.join(words)}"
        )
        self._process = subprocess.Popen([*inside, "unshare", "-m", "sh", "-c", script], preexec_fn=as_from_a_terminal)
        self._wait_until_it_answers()

    @property
    def flags(self) -> list[str]:
        """What the launcher needs to reach it."""
        return ["-p", str(self.port), "-i", str(self.key)]

    def processes(self) -> list[psutil.Process]:
        """All that runs on the hosts, and the connections themselves."""
        return [process for process in self._below() if process.pid != self._process.pid]

    def agents(self, host: str) -> list[psutil.Process]:
        """The agents that were started over it under this name."""
        found = []
        for process in self._below():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "elastic_launch.launcher.hosts.remote" in process.cmdline() and _session_of(
                    process, host, self.port
                ):
                    found.append(process)
        return found

    def cut(self, host: str) -> None:
        """Kills the connection to that host, and nothing else."""
        for agent in self.agents(host):
            for parent in agent.parents():
                if parent.name() == "sshd" and parent.pid != self._process.pid:
                    parent.kill()

    def close(self) -> None:
        for process in [*self._below(), psutil.Process(self._process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)

    def _below(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._process.pid).children(recursive=True))
        return []

    def _wait_until_it_answers(self) -> None:
        asking = [*self._inside, "ssh-keyscan", "-p", str(self.port), "-T", "2", self.hosts[-1]]
        deadline = time.monotonic() + 20
        while not subprocess.run(asking, check=False, capture_output=True).stdout:
            assert self._process.poll() is None, f"sshd has ended with code {self._process.returncode}"
            assert time.monotonic() < deadline, "sshd does not answer"
            time.sleep(0.05)


def _session_of(agent: psutil.Process, host: str, port: int) -> bool:
    """Whether the connection that this agent hangs on was made to `host`."""
    return agent.environ().get("SSH_CONNECTION", "").split()[2:] == [host, str(port)]


def sshd_program() -> str:
    """Empty if there is none."""
    places = ("sshd", "/usr/sbin/sshd", str(_FETCHED / "usr/sbin/sshd"))
    return next((found for place in places if (found := shutil.which(place)) is not None), "")


def reason_without_sshd() -> str:
    """Why this machine cannot do that; empty if it can."""
    if os.geteuid() != 0:
        return "a user and a folder for sshd need root"
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "there is no ssh client: install openssh-client"
    if not sshd_program():
        return "there is no sshd: `make sshd` gets it from Debian"
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        return "mount namespaces cannot be made here"
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_ADDRESSES[0], 0))
        return int(probe.getsockname()[1])
