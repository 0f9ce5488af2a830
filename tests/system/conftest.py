from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .launching import ROOT, SCRIPTS, Lab

Undisturbed = Callable[..., Lab]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A place to launch agents in; none of them outlives the test."""
    lab = Lab(tmp_path)
    yield lab
    lab.end()


@pytest.fixture
def other_lab(tmp_path: Path) -> Iterator[Lab]:
    """For a second job."""
    lab = Lab(tmp_path / "other")
    yield lab
    lab.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The same training by one worker that nobody disturbs, as `python train.py FLAGS`."""
    runs: dict[str, Lab] = {}

    def run(*flags: str, script: str = "train.py") -> Lab:
        key = json.dumps([script, *flags])
        if key not in runs:
            lab = runs[key] = Lab(tmp_path_factory.mktemp("undisturbed"))
            command = [sys.executable, str(SCRIPTS / script), "--journal", str(lab.folder), *flags]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            subprocess.run(command, env=environment, check=True, timeout=300)
        return runs[key]

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes on a busy machine: a test may take long, and has limits of its own that say what it waited for."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
