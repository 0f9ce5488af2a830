from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .clusters import Cluster, reason_without_slurm
from .jobs import SlurmLab


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, n1 to n3, for all tests; skipped with the reason where Slurm cannot be run."""
    reason = reason_without_slurm()
    if reason:
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), count=3)
    yield cluster
    cluster.close()


@pytest.fixture
def job(slurm: Cluster, tmp_path: Path) -> Iterator[SlurmLab]:
    """A place for one job on the idle cluster, and for what its workers write down."""
    yield SlurmLab(slurm, tmp_path)
    slurm.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("slurm"))  # one cluster, not one for each process of pytest
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
