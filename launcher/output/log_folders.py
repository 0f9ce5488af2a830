"""Where output's files lie: JOB/HOST/worker-SLOT-ID/stdout.log and stderr.log, JOB/HOST/agent.log, and links to the latest.

LOG_DIR/latest is the job that was started last, also where several hosts share the folder. JOB/HOST/worker-SLOT is the process
that the slot had last: `tail -F LOG_DIR/latest/HOST/worker-0/stderr.log` goes on with the next one.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

LATEST = "latest"


def host_folder(log_dir: Path, job: str, host: str) -> Path:
    """Made, and the job linked as the latest one. OSError."""
    folder = log_dir / job / host
    folder.mkdir(parents=True, exist_ok=True)
    if job != LATEST:
        _point(log_dir / LATEST, job)
    return folder


def worker_folder(log_dir: Path | None, job: str, host: str, slot: int, worker: str) -> Path | None:
    """The folder of one worker's output, made; None without a `log_dir`. OSError."""
    if log_dir is None:
        return None
    folder = log_dir / job / host / f"worker-{slot}-{worker[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    _point(folder.parent / f"worker-{slot}", folder.name)
    return folder


def _point(link: Path, target: str) -> None:
    """Readers find the old target or the new one. Not every file system has links, and what is no link stays."""
    beside = link.with_name(f".{link.name}-{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(OSError):
        if link.is_symlink() or not link.exists():
            os.symlink(target, beside)
            try:
                beside.replace(link)
            except OSError:
                beside.unlink()
