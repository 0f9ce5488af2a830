"""What a script says of its own failure: the file that `torch.distributed.elastic`'s `@record` writes."""

from __future__ import annotations

import json
from pathlib import Path

_LONGEST = 1 << 20  # bytes


def read_error(path: Path) -> tuple[str, str]:
    """Its message and its traceback; both empty if there is none, or none that can be read."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_LONGEST))
        message = said["message"]
        if isinstance(message, str):
            return message, ""
        return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ""
