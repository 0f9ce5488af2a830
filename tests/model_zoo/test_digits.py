"""The showcase: it learns real data, alone and with a worker killed on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launch.model_zoo.digits.demo import Seen
from elastic_launch.model_zoo.digits.train import digits

FOLDER = Path(__file__).resolve().parents[2] / "model_zoo" / "digits"


def test_it_learns_the_digits_as_a_job_of_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "train.py", "--epochs", "15"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch 15/15  step 330  test loss \S+  test accuracy 0\.9[789]", done.stdout), done.stdout
    assert "1 worker at step 0" in done.stdout


@pytest.mark.timeout(320)
def test_it_goes_on_when_a_worker_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "demo.py", "--epochs", "15"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=310,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"lost: .*SIGKILL.*; 3 workers instead of 4 go on behind step \d+ after a pause of", done.stdout)


def test_the_two_sets_share_no_image_and_hold_all() -> None:
    train, test = (part.tensors[0].reshape(-1, 64).tolist() for part in digits())
    assert len(train) + len(test) == 1797
    assert not {tuple(image) for image in train} & {tuple(image) for image in test}


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ([], "no line told of the loss"),
        (
            ["[g2 r0 h] lost: worker 1; 3 workers", "[g2 r0 h] epoch 1/1  step 9  test accuracy 0.5"],
            "the test accuracy is 0.5",
        ),
        (["[g2 r0 h] lost: worker 1; 3 workers", "[g2 r0 h] epoch 1/1  step 9  test accuracy 0.98"], ""),
    ],
)
def test_the_demo_says_what_it_did_not_see(lines: list[str], missing: str) -> None:
    seen = Seen()
    assert seen.missing() == "no worker was killed"
    seen.killed = 17
    for line in lines:
        seen.read(line)
    assert seen.missing().startswith(missing)
    assert bool(seen.missing()) == bool(missing)
