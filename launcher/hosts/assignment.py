"""What an agent on a host is told by its launcher, in one line on its standard input: nothing of it is on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...rendezvous import worker_environment
from ..options import Options

# Variables that say something about the launcher's own host, login or place in another launcher's job.
_NOT_FOR_OTHERS = re.compile(
    r"BASH_FUNC_.*|OLDPWD|PWD|SHLVL|_|HOSTNAME|HOME|USER|LOGNAME|SHELL|MAIL|TERM|DISPLAY|XDG_.*|SSH_.*|DBUS_.*"
    r"|.*CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HOROVOD_SECRET_KEY|OMPI_.*|PMIX_.*|KUBERNETES_.*"
    rf"|{worker_environment.HOST}|{worker_environment.POD}"
)


class Assignment(msgspec.Struct):
    """`options` are the agent's, but for what only its own host knows; `interfaces` are those whose address it may take.

    `token` is what it shows to the server. `folder` is where it is to run.
    """

    options: Options
    environment: dict[str, str]
    folder: str
    token: str
    interfaces: str = ""


def exported(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the workers on other hosts get too."""
    return {
        name: value
        for name, value in environ.items()
        if not _NOT_FOR_OTHERS.fullmatch(name) and _is_text(name) and _is_text(value)
    }


def encode(assignment: Assignment) -> bytes:
    return msgspec.json.encode(assignment, enc_hook=_plain) + b"\n"


def decode(line: bytes) -> Assignment:
    """msgspec.ValidationError if it is none."""
    return msgspec.json.decode(line, type=Assignment, dec_hook=_made)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} cannot be told to another host")


def _made(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return kind(value)
    raise NotImplementedError(f"{kind} cannot be told to another host")


def _is_text(text: str) -> bool:
    """Bytes that are no text stay here."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
