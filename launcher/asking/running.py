"""What the workers run, by which interpreter, and what becomes of them when others come or go."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..devices import count_gpus
from ..horovod.installed import has_horovod
from ..program import Program, checked_executable, find_program
from ..self_joining import imported_names, joins_by_itself, speaks_of
from .asked import Asked

_ON_CHANGE = ("auto", "in-process", "restart")


class Following(NamedTuple):
    """`restarts`: the processes start again at each change. `real_horovod`: they train with the Horovod that is installed."""

    restarts: bool
    real_horovod: bool
    uses_torch: bool


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
    if our_horovod and asked.text("on_change") == "restart":
        asked.fail(
            "--horovod and --on-change restart do not go together: a script without hvd.elastic starts again anyway"
        )
    return replace(program, our_horovod=our_horovod, starts_again=our_horovod and not speaks_of(program, "elastic"))


def interpreter(asked: Asked) -> str:
    """Another one than this, by torchrun's variable; empty for this one."""
    given = asked.environ.get("PYTHON_EXEC", "")
    return asked.understood(lambda: checked_executable(given), "PYTHON_EXEC") if given else ""


def follows(asked: Asked, program: Program, python: str) -> Following:
    """How the workers follow a change. `python` is as `interpreter` has it."""
    chosen = asked.one_of("on_change", _ON_CHANGE)
    imports = imported_names(program)
    if asked.is_on("horovod"):
        return Following(False, False, "torch" in imports)
    if joins_by_itself(imports) or "horovod" not in imports:
        restarts = not (joins_by_itself(imports) or "horovod" in imports) if chosen == "auto" else chosen == "restart"
        return Following(restarts, False, "torch" in imports)
    if not has_horovod(program, python):
        if chosen != "auto":
            return Following(chosen == "restart", False, "torch" in imports)
        asked.fail(
            f"the script imports horovod, which {python or 'this Python'} does not have: --horovod runs it on the rings of this"
            " package, without Horovod; or install Horovod, or change the script as docs/from-horovodrun.md shows"
        )
    restarts = not speaks_of(program, "elastic") if chosen == "auto" else chosen == "restart"
    return Following(restarts, True, "torch" in imports)


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
