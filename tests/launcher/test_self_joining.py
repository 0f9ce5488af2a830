"""Which scripts take part in the job by themselves, found out without running any."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_launch.launcher.program import find_program
from elastic_launch.launcher.self_joining import imported_names, joins_by_itself


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def joins(name: str, *arguments: str, **how: bool) -> bool:
    return joins_by_itself(imported_names(find_program(name, arguments, **how)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import elastic_launch as elastic", True),
        ("from elastic_launch import join", True),
        ("def main():\n    from elastic_launch.trainer import job", True),
        ("import torch", False),
        ("# import elastic_launch", False),
        ("print('import elastic_launch')", False),
        ("import elastic_launcher", False),
        ("not python at all", False),
        ("", False),
    ],
)
def test_a_script_s_imports_say_it(folder: Path, text: str, expected: bool) -> None:
    (folder / "train.py").write_text(text)
    assert joins("train.py") is expected
    assert joins("python", "train.py") is expected


def test_modules_beside_the_script_are_followed_and_nothing_is_run(folder: Path) -> None:
    (folder / "train.py").write_text("from own.deeper import run\nimport loop_a")
    (folder / "own").mkdir()
    (folder / "own" / "__init__.py").write_text("raise SystemExit('was run')")
    (folder / "own" / "deeper.py").write_text("from . import sibling")
    (folder / "loop_a.py").write_text("import loop_b")
    (folder / "loop_b.py").write_text("import loop_a, elastic_launch")
    assert joins("train.py")


def test_modules_and_packages_are_found_without_being_imported(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise SystemExit('was run')")
    (folder / "package" / "__main__.py").write_text("import elastic_launch")
    (folder / "package" / "plain.py").write_text("import torch")
    assert joins("package", as_module=True)
    assert joins("package.__main__", as_module=True)
    assert not joins("package.plain", as_module=True)
    assert imported_names(find_program("package.plain", [], as_module=True)) == {"torch"}


def test_nothing_is_known_of_other_programs() -> None:
    assert imported_names(find_program("bash", ["-c", "python train.py"])) == set()
