"""Whether the real Horovod is there for a program, without importing it."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

from ..program import Program

_LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('horovod') is None)"
_LIMIT = 60.0  # seconds; a first start over a network file system may take long


def has_horovod(program: Program, python: str = "") -> bool:
    """Of `python`, another interpreter than this one if it is not empty."""
    if python:
        try:
            looked = subprocess.run((python, "-c", _LOOK), capture_output=True, timeout=_LIMIT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return looked.returncode == 0
    own = str(Path(program.name).resolve().parent) if program.kind == "script" else os.getcwd()
    spec = importlib.machinery.PathFinder.find_spec("horovod", [own, *sys.path])
    return spec is not None and spec.origin is not None  # a folder that is no package has none
