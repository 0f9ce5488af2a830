from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_launch.trainer import joining

from ..system.conftest import lab, undisturbed

__all__ = ["lab", "undisturbed"]


@pytest.fixture
def job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process joins one job; each test that uses this is one."""
    monkeypatch.setattr(joining, "_job", None)
    monkeypatch.setattr(joining, "_control", None)
    yield
    if joining._job is not None:
        joining._job.close()
