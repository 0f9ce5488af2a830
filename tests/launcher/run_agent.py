"""Runs an agent with the options given as JSON: what `elastic-launch` does, with any command for its workers."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from elastic_launch.launcher.flags.output_words import output_settings
from elastic_launch.launcher.flags.words import Said
from elastic_launch.launcher.main import run
from elastic_launch.launcher.options import Options

if __name__ == "__main__":
    fields: dict[str, Any] = json.loads(sys.argv[1])
    if fields.pop("adopts", False):  # as the first process of a container does
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in ("command", "urls"):
        fields[name] = tuple(fields.get(name, ()))
    if fields.get("log_dir"):
        fields["log_dir"] = Path(fields["log_dir"])
    said = {name: Said(value, name) for name, value in fields.pop("output_words", {}).items()}
    output = output_settings(said, sys.exit)
    sys.exit(run(Options(**fields, output=output)))
