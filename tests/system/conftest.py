from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .launching import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A place to launch agents in; none of them outlives the test."""
    lab = Lab(tmp_path)
    yield lab
    lab.end()
