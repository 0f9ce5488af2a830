"""The real Horovod, from its wheel, and a lab whose agents' workers find it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import HorovodLab

WHEEL = os.environ.get("ELASTIC_TEST_HOROVOD", "")


@pytest.fixture(scope="session")
def horovod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH. What Horovod needs beside torch is installed with the tests."""
    if not Path(WHEEL).is_file():
        pytest.skip(f"no wheel of Horovod: ELASTIC_TEST_HOROVOD, which names it, is {WHEEL!r}")
    folder = tmp_path_factory.mktemp("horovod")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture
def lab(tmp_path: Path, horovod: Path) -> Iterator[HorovodLab]:
    """A place to launch agents in; none of them outlives the test."""
    lab = HorovodLab(tmp_path, horovod)
    yield lab
    lab.end()
