"""The command line that starts something on another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_launch.errors import UsageError
from elastic_launch.launcher.hosts.remote_shell import find_shell


def test_ssh_is_asked_for_nothing_and_ends_when_its_host_is_silent(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    words = find_shell("", "2222", str(key), {}).words("h1", ["echo", "a b"])
    assert words[0] == "ssh"
    assert words[-3:] == ("--", "h1", "echo 'a b'")
    for flag in ("BatchMode=yes", "ServerAliveCountMax=3"):
        assert words[words.index(flag) - 1] == "-o"
    assert words[words.index("-p") + 1] == "2222"
    assert words[words.index("-i") + 1] == str(key)


def test_another_remote_shell_is_called_as_rsh_is() -> None:
    shell = find_shell("/opt/my rsh -q".replace("my rsh", "rsh"), "", "", {})
    assert shell.words("h1", ["echo", "a b"]) == ("/opt/rsh", "-q", "h1", "echo 'a b'")
    assert not shell.passes_input


@pytest.mark.parametrize(
    ("agent", "words"),
    [("/etc/mpi/kubexec.sh", ("/etc/mpi/kubexec.sh", "h1", "true")), ("rsh : ssh", ("rsh", "h1", "true"))],
)
def test_open_mpis_agent_takes_the_place_of_ssh(agent: str, words: tuple[str, ...]) -> None:
    assert find_shell("", "", "", {"OMPI_MCA_plm_rsh_agent": agent}).words("h1", ["true"]) == words


def test_open_mpis_arguments_are_ssh_arguments() -> None:
    environ = {"OMPI_MCA_plm_rsh_agent": "/usr/bin/ssh -4", "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    shell = find_shell("", "", "", environ)
    words = shell.words("h1", ["true"])
    assert words[0] == "/usr/bin/ssh"
    assert words[-6:] == ("-4", "-o", "ConnectionAttempts=10", "--", "h1", "true")
    assert shell.passes_input


def test_what_cannot_be_a_remote_shell_is_refused() -> None:
    for given, port, identity in (("rsh", "22", ""), ("rsh 'x", "", ""), ("", "ssh", ""), ("", "", "/no/such/key")):
        with pytest.raises(UsageError):
            find_shell(given, port, identity, {})
