"""How the commands of this package show their help: as wide as a terminal is, up to 100 columns, texts as they are written."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

WIDTH = 100  # columns, at most, and where there is no terminal
_FLAGS = 30  # columns


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        columns = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
        super().__init__(prog, **{"max_help_position": _FLAGS, "width": columns - 2, **options})
