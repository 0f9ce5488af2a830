"""A temporary folder that does not outlive its process for long: what a killed process leaves, the next one removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OWNED = ".owned"


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """An empty folder, removed at the end of the block. Those of this prefix whose process is gone are removed at its begin."""
    _remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with open(folder / "owner", "wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(owner.name, folder / _OWNED)  # from here on it has an owner, and is locked already
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(prefix + "*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with open(folder / _OWNED, "rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or gone already
            pass
