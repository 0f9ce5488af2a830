"""The help and the completion of the three commands, as a user of a shell meets them."""

from __future__ import annotations

import argparse
import functools
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launch.k8s import command_line
from elastic_launch.launcher.flags import parsing
from elastic_launch.rendezvous import main as rendezvous

ROOT = Path(__file__).parent.parent
MODULES = {
    "elastic-launch": "elastic_launch.launcher.main",
    "elastic-rendezvous": "elastic_launch.rendezvous.main",
    "elastic-job": "elastic_launch.k8s.main",
}
PARSERS = {
    "elastic-launch": parsing.build_parser(),
    "elastic-rendezvous": rendezvous.build_parser(),
    "elastic-job": command_line.build_parser(),
}
# The default of these is in their words: another flag's, nothing, or what happens without them.
SAYS_ITS_DEFAULT = re.compile(r"\bdefaults?\b|^ignored|^refused|: ignored|^the same as|^as --")
TAB = "\t"


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command, and each command of a command."""
    for name, parser in PARSERS.items():
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {word}", command) for word, command in action.choices.items())


FLAGS = [
    pytest.param(action, id=f"{name} {(action.option_strings or [action.dest])[-1]}")
    for name, parser in commands()
    for action in parser._actions
    if action.help != argparse.SUPPRESS  # without effect: docs/horovodrun-flags.md has them
]


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_says_what_it_does_and_what_holds_without_it(flag: argparse.Action) -> None:
    assert flag.help
    takes_a_value = flag.option_strings and flag.nargs != 0
    if takes_a_value and flag.dest != "print_completion":
        assert SAYS_ITS_DEFAULT.search(flag.help), flag.help


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_the_help_fits_100_columns(name: str) -> None:
    command, *words = name.split()
    shown = run(command, *words, "--help")
    assert max(map(len, shown.splitlines())) <= 100, max(shown.splitlines(), key=len)


@pytest.mark.parametrize("name", PARSERS)
def test_the_help_is_a_manual_page(name: str) -> None:
    shown = run(name, "--help")
    for part in ("examples:", "environment:", "signals:", "exit codes:", "see also: elastic-"):
        assert part in shown or (name == "elastic-job" and part in ("signals:", "see also: elastic-"))


EXAMPLES = [
    line.strip()
    for name, parser in PARSERS.items()
    for line in str(parser.epilog).splitlines()
    if re.match(rf"  (srun )?{name}\b", line)
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_is_understood(line: str) -> None:
    words = shlex.split(line, comments=True)
    while words[0] not in PARSERS:
        words.pop(0)
    command, *arguments = words
    rest = arguments.index("--") if "--" in arguments else len(arguments)
    PARSERS[command].parse_args(arguments[:rest])


def test_there_are_examples_of_each_command() -> None:
    assert {word for line in EXAMPLES for word in line.split()} >= {*PARSERS, "srun"}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("elastic-launch --max-restrats 3 train.py", "--max-restrats: did you mean --max-restarts?"),
        ("elastic-launch -n 4 train.py", "-n: did you mean -np?"),
        ("elastic-rendezvous --prot 3", "--prot: did you mean --port?"),
        ("elastic-job status --watc x", "--watc: did you mean --watch?"),
        ("elastic-job scale x --maximum 3", "--maximum: did you mean --max?"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_right_one(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *words = line.split()
    with pytest.raises(SystemExit) as ending:
        PARSERS[command].parse_args(words)
    assert ending.value.code == 2
    assert f"unrecognized arguments: {hint}" in capsys.readouterr().err


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_each_shell_gets_a_script_that_names_the_flags(name: str, shell: str) -> None:
    script = run(name, "--print-completion", shell)
    assert name in script
    assert {"elastic-launch": "hang-timeout", "elastic-rendezvous": "leader-lease", "elastic-job": "toleration"}[
        name
    ] in script


class Shell:
    """An interactive shell on a terminal of its own; `see` is what a user sees, until the text that is waited for."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environ = {**os.environ, "TERM": "dumb", "PS1": "ready> ", "HISTFILE": "", "COLUMNS": "200"}
            os.execvpe(command[0], command, environ)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def see(self, text: str, limit: float = 20) -> str:
        deadline = time.monotonic() + limit
        start = len(self.seen)
        while text not in self.seen[start:]:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._terminal], [], [], left)[0]
            assert ready, f"{text!r} is not in {self.seen[start:]!r}"
            self.seen += os.read(self._terminal, 65536).decode(errors="replace")
        return self.seen[start:]

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    (tmp_path / "training.py").touch()
    command = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}[name]
    shell = Shell(command, tmp_path)
    if name == "zsh":
        shell.type("PS1='ready> '; autoload -U compinit && compinit -u -d ./dump\n")
    shell.see("ready> ")
    for command_name in PARSERS:
        (tmp_path / f"{command_name}.{name}").write_text(run(command_name, "--print-completion", name))
        shell.type(f'eval "$(cat {command_name}.{name})"\n')
    shell.type("echo all is $((40 + 2))\n")
    shell.see("all is 42")
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("elastic-launch --hang-t", "elastic-launch --hang-timeout"),
        ("elastic-launch --min 1 --max-rest", "--max-restarts"),
        ("elastic-launch train", "elastic-launch training.py"),
        ("elastic-launch --token-file train", "--token-file training.py"),
        ("elastic-rendezvous --leader", "elastic-rendezvous --leader-lease"),
        ("elastic-rendezvous --log-format js", "--log-format json"),
        ("elastic-job sub", "elastic-job submit"),
        ("elastic-job submit --priority-cl", "--priority-class"),  # zsh shows it first
    ],
)
def test_the_tabulator_completes(shell: Shell, typed: str, completed: str) -> None:
    shell.type(typed + TAB)
    shell.see(completed)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: apt-get install fish")
def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "c.fish").write_text(run("elastic-launch", "--print-completion", "fish"))
    answer = subprocess.run(
        ["fish", "--no-config", "-c", "source c.fish; complete -C 'elastic-launch --hang-t'"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "--hang-timeout" in answer.stdout, answer


@functools.cache
def run(command: str, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    answer = subprocess.run(
        [sys.executable, "-m", MODULES[command], *arguments],
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
