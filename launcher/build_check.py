"""What is available on this machine, as `horovodrun --check-build` shows it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

# In a process of its own: a launcher imports no framework.
_ASK_TORCH = (
    "import json, torch.distributed as d;"
    "print(json.dumps([d.is_available() and d.is_gloo_available(), d.is_available() and d.is_nccl_available()]))"
)
_LIMIT = 60.0  # seconds for torch to be imported

_TEXT = """\
elastic-launch {version}:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [{gloo}] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [{gloo}] Gloo"""


def build_check() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = "v" + version("elastic-launch")
    except PackageNotFoundError:
        own = "(not installed)"
    torch = importlib.util.find_spec("torch") is not None
    gloo, nccl = _backends() if torch else (False, False)
    tensorflow = importlib.util.find_spec("tensorflow") is not None
    marks = {"torch": torch, "tensorflow": tensorflow, "gloo": gloo, "nccl": nccl}
    return _TEXT.format(version=own, **{name: "X" if value else " " for name, value in marks.items()})


def _backends() -> tuple[bool, bool]:
    """Whether this torch has gloo and NCCL."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True,
            check=True,
            timeout=_LIMIT,
            stdin=subprocess.DEVNULL,
        )
        gloo, nccl = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return False, False
    return bool(gloo), bool(nccl)
