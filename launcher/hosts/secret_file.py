"""A secret where a path to a file is asked for."""

from __future__ import annotations

import os
from pathlib import Path


def secret_file(secret: str) -> Path:
    """A file in memory that nobody else can read, and that ends with this process."""
    descriptor = os.memfd_create("secret")
    os.write(descriptor, secret.encode())
    return Path(f"/proc/self/fd/{descriptor}")
