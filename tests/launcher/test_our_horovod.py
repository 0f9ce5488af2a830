"""`--horovod`: what a worker runs then, and what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_launch.launcher.asking.parse import parse
from elastic_launch.launcher.options import Options

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
COMMAND = (sys.executable, "-u", "-m", "elastic_launch.horovod.running")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def options(*arguments: str) -> Options:
    return parse([*arguments, "train.py", "--rate", "1"], NO_GPU)


def test_an_elastic_script_goes_on_in_its_processes(script: Path) -> None:
    script.write_text("import horovod.torch as hvd\n@hvd.elastic.run\ndef train(state): pass\n")
    asked = options("--horovod", "-np", "2")
    assert asked.command == (*COMMAND, "train.py", "--rate", "1")
    assert not asked.restarts and not asked.real_horovod


def test_another_starts_again_when_a_worker_is_lost(script: Path) -> None:
    script.write_text("import horovod.torch as hvd\nhvd.init()\n")
    asked = options("--horovod")
    assert asked.command == (*COMMAND, "--starts-again", "train.py", "--rate", "1")
    assert not asked.restarts


def test_the_variable_says_it_too(script: Path) -> None:
    script.write_text("import horovod.torch as hvd\nhvd.elastic.run\n")
    assert parse(["train.py"], {**NO_GPU, "ELASTIC_HOROVOD": "1"}).command == (*COMMAND, "train.py")


@pytest.mark.parametrize(
    ("flags", "words"), [(["--on-change", "restart"], "do not go together"), (["--no-python"], "is for Python scripts")]
)
def test_what_cannot_be_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(SystemExit) as ending:
        parse(["--horovod", *flags, "./train.py"], NO_GPU)
    assert ending.value.code == 2 and words in " ".join(capsys.readouterr().err.split())
