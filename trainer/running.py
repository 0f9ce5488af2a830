"""Running a script as `python` would: as `__main__`, with its folder, or the working directory, first in the search path."""

from __future__ import annotations

import os
import runpy
import sys
from types import TracebackType

from .numa import bind_as_asked


def run(program: str, as_module: bool) -> None:
    """`sys.argv` is the script's already. What the script raises is raised here."""
    bind_as_asked(os.environ)
    if as_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")


def of_the_script(error: BaseException) -> TracebackType | None:
    """The error's traceback from the script's first line on: what is in front of it is `run` and its callers."""
    found = error.__traceback__
    inside = False
    while found is not None:
        runs = (
            found.tb_frame.f_code.co_filename == __file__ or found.tb_frame.f_globals.get("__name__") == runpy.__name__
        )
        if inside and not runs:
            return found
        inside = inside or runs
        found = found.tb_next
    return error.__traceback__
