"""What a worker runs: a Python script, a module, or any program, from what stands behind the flags."""

from __future__ import annotations

import importlib.machinery
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import UsageError

WORKER_MODULE = "elastic_launch.trainer.main"
HOROVOD_MODULE = "elastic_launch.horovod.running"  # the same, with our Horovod in the place of the real one
_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")


@dataclass(frozen=True)
class Program:
    """`name` and `arguments` as they were written; `kind` says what the name is of.

    With `our_horovod`, `import horovod` gives Python programs this package's. One that `starts_again` does not use its
    elastic mode: its process is started afresh when another is lost.
    """

    kind: Literal["script", "module", "executable"]
    name: str
    arguments: tuple[str, ...] = ()
    our_horovod: bool = False
    starts_again: bool = False

    def command(self, python: str = sys.executable) -> tuple[str, ...]:
        """The command line of a worker. Scripts and modules run within this package's own main module."""
        if self.kind == "executable":
            return (self.name, *self.arguments)
        flag = ("--module",) if self.kind == "module" else ()
        main = (
            (HOROVOD_MODULE, *(["--starts-again"] if self.starts_again else []))
            if self.our_horovod
            else (WORKER_MODULE,)
        )
        return (python, "-u", "-m", *main, *flag, self.name, *self.arguments)

    def under(self, python: str) -> Program:
        """The same, run by another interpreter, which need not know this package."""
        if self.kind == "executable":
            return self
        how = ("-u", "-m") if self.kind == "module" else ("-u",)
        return Program("executable", python, (*how, self.name, *self.arguments))


def find_program(
    name: str, arguments: Sequence[str], as_module: bool = False, as_executable: bool = False, as_script: bool = False
) -> Program:
    """`python train.py`, `python -m train` and `./run.sh` are understood too. UsageError for what cannot be run."""
    rest = tuple(arguments)
    if as_module:
        return Program("module", _checked_module(name), rest)
    if as_executable:
        return Program("executable", checked_executable(name), rest)
    if as_script:
        return Program("script", _checked_script(name), rest)
    if _INTERPRETER.fullmatch(name) and not Path(name).exists():
        while rest and rest[0] == "-u":  # as workers always do
            rest = rest[1:]
        if rest[:1] == ("-m",) and len(rest) > 1:
            return Program("module", _checked_module(rest[1]), rest[2:])
        if rest and not rest[0].startswith("-"):
            return Program("script", _checked_script(rest[0]), rest[1:])
        return Program("executable", sys.executable, rest)
    if _is_executable(name):
        return Program("executable", name, rest)
    return Program("script", _checked_script(name), rest)


def _is_executable(name: str) -> bool:
    """A file that is no Python script but may be run, or, if there is no such file, a program of the search path."""
    path = Path(name)
    if not path.exists():
        return "/" not in name and not name.endswith(".py") and shutil.which(name) is not None
    if path.is_dir() or path.suffix in (".py", ".pyc", ".zip", ".pyz") or not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        first = file.readline(200)
    return not (first.startswith(b"#!") and b"python" in first)


def checked_executable(name: str) -> str:
    if shutil.which(name) is None:
        raise UsageError(
            f"program {name!r} cannot be run: it is neither a file that may be executed nor in the PATH."
            " Check the name (and chmod +x), or give the whole path"
        )
    return name


def _checked_script(script: str) -> str:
    path = Path(script)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"script {script!r} is a folder without __main__.py: give the Python file to run")
    elif not path.exists():
        hint = ": check the path"
        if script.startswith("-"):
            hint = " (flags of elastic-launch come before the script)"
        elif not script.endswith(".py") and "/" not in script:
            hint = " (give -m before the name of a module)"
        raise UsageError(f"script {script!r} does not exist in {os.getcwd()}{hint}")
    elif not os.access(path, os.R_OK):
        raise UsageError(f"script {script!r} cannot be read: check whose it is, and its mode (ls -l)")
    return script


def _checked_module(module: str) -> str:
    """Looks for the top-level name only: finding a submodule would import its parents, the user's code, in here."""
    top = module.partition(".")[0]
    search = [os.getcwd(), *sys.path]
    known = top in sys.builtin_module_names
    if not top or (not known and importlib.machinery.PathFinder.find_spec(top, search) is None):
        raise UsageError(f"module {module!r} cannot be found from {os.getcwd()}: check the name, or install it")
    return module
