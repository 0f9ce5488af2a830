"""What an agent is told arrives whole, and says nothing of the launcher's own host."""

from __future__ import annotations

from pathlib import Path

from elastic_launch.launcher.access import Access
from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.hosts.assignment import Assignment, decode, encode, exported
from elastic_launch.launcher.options import Options
from elastic_launch.launcher.program import Program


def test_an_assignment_arrives_as_it_was_sent_in_one_line() -> None:
    options = Options(
        ("python", "train.py"),
        log_dir=Path("/logs"),
        program=Program("script", "train.py", ("a\nb",)),
        access=Access(token_file=Path("/token")),
        urls=("http://h:1",),
    )
    assignment = Assignment(options, {"NAME": "a\n'b'"}, "/work", "secret")
    line = encode(assignment)
    assert line.count(b"\n") == 1
    assert decode(line) == assignment


def test_options_of_a_command_line_can_be_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    output = ["--log-dir", str(tmp_path), "--tee", "3", "--redirects", "0:1,1:3", "--local-ranks-filter", "0,1"]
    others = ["--duplicate-stdout-filters", "loss", "--log-level", "INFO", "--signals-to-handle", "SIGUSR1"]
    flags = ["-np", "2", "-H", "h1:2", "--blacklist-cooldown-range", "1", "9", *output, *others]
    options = parse([*flags, str(script)], {"CUDA_VISIBLE_DEVICES": ""})
    assert decode(encode(Assignment(options, {}, "/", ""))).options == options


def test_variables_of_the_launchers_own_host_and_login_stay_there() -> None:
    ours = {"PATH": "/bin", "LANG": "C.UTF-8", "MY_TOKEN": "x", "NCCL_DEBUG": "INFO", "TERMINAL": "x"}
    own = dict.fromkeys(
        (
            "HOME",
            "PWD",
            "HOSTNAME",
            "SSH_AUTH_SOCK",
            "CUDA_VISIBLE_DEVICES",
            "HIP_CUDA_VISIBLE_DEVICES",
            "ELASTIC_HOST",
        ),
        "x",
    )
    odd = {"BYTES": b"\xff".decode(errors="surrogateescape"), "BASH_FUNC_f%%": "() { :; }"}
    assert exported({**ours, **own, **odd}) == ours
