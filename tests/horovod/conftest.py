from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .jobs import HorovodLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HorovodLab]:
    """A place to launch scripts that import horovod in; none of them outlives the test."""
    lab = HorovodLab(tmp_path)
    yield lab
    lab.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes that import a framework, on a busy machine; the tests have limits of their own."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))
