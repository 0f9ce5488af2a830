"""Where a cluster's node is: at its name, or where Slurm says if the name means nothing to the system."""

from __future__ import annotations

import os
import re
import socket
import subprocess

_LIMIT = 10.0  # seconds for Slurm's controller to answer


def place_of(node: str) -> str:
    """What to put into a URL for that node: its name if it can be resolved, else the address that Slurm uses itself."""
    try:
        socket.getaddrinfo(node, 0, type=socket.SOCK_STREAM)
    except OSError:
        return _known_to_slurm(node) or node
    return node


def _known_to_slurm(node: str) -> str:
    """Empty if Slurm cannot be asked, or knows no other name."""
    try:
        answer = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
    return found.group(1) if found else ""
