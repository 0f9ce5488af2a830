"""How a command is started on another host: the OpenSSH client, or whatever takes its place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import UsageError

# As horovodrun: nobody can be asked for a password or about a host's key, and pods come back under their name with another
# key. A host that is silent for 45 s counts as gone. The connection is this command's alone: others end without it.
_SSH_OPTIONS = (
    "-T", "-x", "-a",
    "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
    "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3",
    "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ClearAllForwardings=yes",
)  # fmt: skip

# Where Open MPI, and so Kubeflow's MPIJob, says what to use in place of ssh.
AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
ARGUMENTS_VARIABLE = "OMPI_MCA_plm_rsh_args"


@dataclass(frozen=True)
class RemoteShell:
    """`command` is called with a host and one argument for that host's shell, as rsh and ssh are."""

    command: tuple[str, ...]
    unreached: frozenset[int] = frozenset({1, 255})
    """Its own exit codes for a host that it could not reach."""
    passes_input: bool = False
    """Whether it is sure that standard input reaches what it starts."""

    def words(self, host: str, remote: Sequence[str]) -> tuple[str, ...]:
        """The command line that runs `remote` on `host`."""
        return (*self.command, host, shlex.join(remote))


def ssh(port: str = "", identity: str = "", program: str = "ssh", arguments: Sequence[str] = ()) -> RemoteShell:
    """UsageError for a port that cannot be one."""
    words = [program, *_SSH_OPTIONS]
    if port:
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise UsageError(f"-p (--ssh-port) is {port!r}: give a port from 1 to 65535")
        words += ["-p", port]
    if identity:
        if not os.access(identity, os.R_OK):
            raise UsageError(
                f"-i (--ssh-identity-file) is {identity!r}, which cannot be read: give the path of your private key"
            )
        words += ["-i", identity]
    return RemoteShell((*words, *arguments, "--"), frozenset({255}), passes_input=True)


def find_shell(given: str, port: str, identity: str, environ: Mapping[str, str]) -> RemoteShell:
    """`given` is --remote-shell, empty for Open MPI's variables, or else ssh. UsageError for what cannot be used."""
    if given:
        if port or identity:
            raise UsageError(
                "--remote-shell says the whole command: put the port and the key into it, and leave out -p and -i"
            )
        return RemoteShell(_words(given, "--remote-shell"))
    arguments = _words(environ.get(ARGUMENTS_VARIABLE, ""), ARGUMENTS_VARIABLE)
    # Open MPI takes the first of several that there is, as in "ssh : rsh".
    agent = _words(environ.get(AGENT_VARIABLE, "").partition(":")[0], AGENT_VARIABLE)
    if agent and os.path.basename(agent[0]) != "ssh":
        return RemoteShell((*agent, *arguments))
    return ssh(port, identity, agent[0] if agent else "ssh", (*agent[1:], *arguments))


def _words(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"{where} is {text!r}, which the shell's rules do not allow: {error}. Correct the quotes"
        ) from None
