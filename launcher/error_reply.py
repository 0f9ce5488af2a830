"""Why the job failed, for whoever started the agent: the file that TORCHELASTIC_ERROR_FILE names in the agent's own environment.

TorchX and other job managers set it and read it, in the format of `torch.distributed.elastic.multiprocessing.errors`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from . import exits
from .ending import Ending

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def reply(ending: Ending, environ: Mapping[str, str]) -> str:
    """Writes it if it is asked for and there is an error. Returns what was in the way, or nothing."""
    name = environ.get(VARIABLE, "")
    if not name or ending.code in (exits.SUCCESS, exits.INTERRUPTED):
        return ""
    extra = {"py_callstack": ending.tail, "timestamp": str(int(time.time()))}
    message = {"message": ending.text, "extraInfo": extra, "errorCode": ending.code}
    path = Path(name)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps({"message": message}))
        beside.replace(path)
    except OSError as error:
        return f"{VARIABLE} is {name!r}, which cannot be written: {error.strerror}"
    return ""
