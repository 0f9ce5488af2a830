"""What every test starts from: no trace of a surrounding job in the environment, one thread per process, no chance."""

from __future__ import annotations

import os

import hypothesis
import pytest

# The same examples each time, so that who has changed nothing sees no failure; random ones are for the soak. Failures
# are told without explanations, for which every line is traced.
PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
hypothesis.settings.register_profile("same each time", derandomize=True, deadline=None, phases=PHASES)
hypothesis.settings.load_profile("same each time")

# Tests start many processes on few cores. Before the first import of torch, and inherited by every child.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def no_surrounding_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is never taken for a worker of the job that it may run in."""
    for name in list(os.environ):
        if name.startswith(("ELASTIC_", "SLURM_")):
            monkeypatch.delenv(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a CUDA device where there is none. Imports torch only if such a test is asked for."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests that share something run in one process: a cluster whose API server one of them stops, a node that it empties."""
    if session.config.getoption("loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
                raise pytest.UsageError(
                    "this pytest and this xdist do not group tests: install what constraints.txt says"
                )
