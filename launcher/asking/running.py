"""What the workers run, by which interpreter, and what becomes of them when others come or go."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ..devices import count_gpus
from ..program import Program, checked_executable, find_program
from ..self_joining import joins_by_itself
from .asked import Asked

_ON_CHANGE = ("auto", "in-process", "restart")


def program_of(asked: Asked) -> Program:
    if asked.flags.script is None:
        asked.fail(
            "no script was given: name what the workers are to run, as in elastic-launch train.py (--help shows more)"
        )
    is_module = asked.flags.module or asked.is_on("module")
    is_script, is_executable = asked.is_on("run_path"), asked.is_on("no_python")
    if is_module and (is_script or is_executable):
        asked.fail("-m runs a Python module: leave out --no-python and --run-path, or -m")
    program = asked.understood(
        lambda: find_program(
            asked.flags.script,
            asked.flags.args,
            as_module=is_module,
            as_executable=is_executable and not is_script,
            as_script=is_script,
        )
    )
    our_horovod = asked.is_on("horovod")
    if our_horovod and program.kind == "executable":
        asked.fail(f"--horovod is for Python scripts: {program.name!r} would not see it")
    return replace(program, our_horovod=our_horovod)


def interpreter(asked: Asked) -> str:
    """Another one than this, by torchrun's variable; empty for this one."""
    given = asked.environ.get("PYTHON_EXEC", "")
    return asked.understood(lambda: checked_executable(given), "PYTHON_EXEC") if given else ""


def restarts(asked: Asked, imports: Set[str]) -> bool:
    """Whether the processes start again at each change. `imports` are the names that the program imports."""
    chosen = asked.one_of("on_change", _ON_CHANGE)
    if chosen != "auto":
        return chosen == "restart"
    if "horovod" in imports and asked.is_on("horovod"):
        return False
    if "horovod" in imports and not joins_by_itself(imports):
        asked.fail(
            "the script imports horovod, whose processes would not find each other here: each would train alone."
            " Change the script as docs/from-horovodrun.md shows, or give --on-change restart if it does not call hvd.init()"
        )
    return not joins_by_itself(imports)


def preloaded(asked: Asked) -> tuple[str, ...]:
    return tuple(name.strip() for name in asked.text("preload").split(",") if name.strip())


def numa_binding(asked: Asked, program: Program) -> str:
    given = asked.said("numa_binding")
    if given is None:
        return ""
    if program.kind == "executable":
        asked.fail(f"{given.where} is for Python scripts: put `numactl` in front of {program.name!r} instead")
    if count_gpus(asked.environ) == 0:
        asked.fail(f"{given.where} binds workers near their GPUs, but this host has no NVIDIA GPU: leave it out")
    return given.value
