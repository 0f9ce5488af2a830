"""What torch can do here. It is asked in a process of its own: the launcher itself never imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..devices import count_gpus
from .finding import Finding

_MODULE = "elastic_launch.trainer.pytorch.facts"
_LIMIT = 120.0  # seconds: a first import from a network file system


def look_at_the_framework(environ: Mapping[str, str]) -> list[Finding]:
    gpus = count_gpus(environ)
    facts = _ask(environ)
    if "error" in facts:
        advice = f"install it for {sys.executable}: pip install torch"
        return [Finding("torch", str(facts["error"]), "fails", advice), Finding("GPUs", f"{gpus} seen by the driver")]
    backends = ", ".join(facts["backends"]) or "none"
    return [
        Finding("torch", f"{facts['version']} ({facts['built_for']})"),
        Finding("backends", backends, *(_NO_GLOO if "gloo" not in facts["backends"] else ())),
        _ring(facts),
        _gpus(gpus, facts),
    ]


_NO_GLOO = ("fails", "this build of torch cannot form a ring on CPUs: install the usual wheel")


def _ring(facts: Mapping[str, Any]) -> Finding:
    if facts["gloo_error"]:
        advice = "gloo must find an address: see the host name above, or set GLOO_SOCKET_IFNAME"
        return Finding("gloo", f"a ring of one cannot be formed: {facts['gloo_error']}", "fails", advice)
    return Finding("gloo", "forms a ring of one")


def _gpus(gpus: int, facts: Mapping[str, Any]) -> Finding:
    names = facts["gpus"]
    if names:
        return Finding("GPUs", f"{len(names)}: {', '.join(sorted(set(names)))}")
    if gpus:
        advice = "torch does not see them: install a torch for this driver (nvidia-smi shows its CUDA version)"
        return Finding(
            "GPUs", f"{gpus} seen by the driver, none by torch {facts['gpu_error']}".rstrip(), "fails", advice
        )
    return Finding("GPUs", "none: workers train on the CPU")


def _ask(environ: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", _MODULE]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            timeout=_LIMIT,
            check=False,
            env={**environ},
            stdin=subprocess.DEVNULL,
            cwd=os.getcwd(),
        )
    except subprocess.TimeoutExpired:
        return {"error": f"does not answer within {_LIMIT:.0f} s"}
    try:
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        return found
    except (ValueError, IndexError):
        words = answer.stderr.decode(errors="replace").strip().splitlines()
        return {"error": words[-1] if words else f"the question ended with exit code {answer.returncode}"}
