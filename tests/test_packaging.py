"""The package as a user gets it: wheel, sdist and editable install, each used outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("rendezvous", "launcher", "trainer", "k8s", "model_zoo")
SCRIPTS = ("elastic-launch", "elastic-rendezvous", "elastic-job")
PACKED = (*FOLDERS, "elastic_launch", "pyproject.toml", "README.md", "LICENSE")

pytestmark = [
    pytest.mark.xdist_group("packaging"),
    pytest.mark.timeout(300),
    # Beside it, a test of a cluster may still be closing its connections, whose certificate is not checked.
    pytest.mark.filterwarnings("error", "ignore:Unverified HTTPS request"),
]


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """The output of a command that must succeed; `path` is the only thing on PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fails(code: str, cwd: Path) -> str:
    """The last line that Python says about `code`, which must fail."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, text=True, capture_output=True, timeout=120)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def modules(source: Path) -> list[str]:
    """Every module of the package, as a path that starts with elastic_launch/."""
    own = [*(source / "elastic_launch").glob("*.py"), *(source / "elastic_launch" / "horovod").rglob("*.py")]
    linked = [path for folder in FOLDERS for path in (source / folder).rglob("*.py")]
    found = [path.relative_to(source).as_posix() for path in own + linked]
    return sorted(f"elastic_launch/{name.removeprefix('elastic_launch/')}" for name in found)


def importable(source: Path) -> list[str]:
    """The names of the package's modules; the scripts of the model zoo are programs and run when imported."""
    paths = [path for path in modules(source) if "/model_zoo/" not in path and not path.endswith("__main__.py")]
    return [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed, links as links, so that building leaves the checkout alone."""
    folder = tmp_path_factory.mktemp("source")
    for name in PACKED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder into which pip has installed the sdist."""
    folder = tmp_path_factory.mktemp("installed")
    (sdist,) = built.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "--target", folder, sdist, cwd=folder)
    yield folder


def test_the_wheel_holds_every_module_once_and_the_type_marker(source: Path, built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(name for name in names if name.endswith(".py")) == modules(source)
    assert Counter(names)["elastic_launch/py.typed"] == 1
    assert {name.split("/")[0] for name in names} == {"elastic_launch"}


def test_the_sdist_holds_every_module_once_and_the_licence(source: Path, built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = [member.name.split("/", 1)[1] for member in members if member.isfile()]
    assert sorted(name for name in names if name.endswith(".py") and name != "setup.py") == modules(source)
    assert not any(member.issym() for member in members)
    assert {"elastic_launch/py.typed", "LICENSE", "pyproject.toml", "README.md"} <= set(names)


@pytest.mark.parametrize(
    ("absent", "words"), [(("torch",), ("torch",)), (("tensorflow", "keras"), ("tensorflow", "tf_", "keras"))]
)
def test_the_sdists_modules_import_outside_the_checkout_and_without_a_framework_that_they_do_not_name(
    absent: tuple[str, ...], words: tuple[str, ...], source: Path, installed: Path, tmp_path: Path
) -> None:
    """So each of the extras [torch] and [tensorflow] is enough."""
    names = [name for name in importable(source) if not any(word in name for word in words)]
    assert {"elastic_launch.launcher.main", "elastic_launch.trainer.data.sampler"} <= set(names)
    code = (
        "import importlib, pathlib, sys\n"
        f"home = pathlib.Path({str(installed)!r})\n"
        "class Absent:\n"
        "    def find_spec(name, path, target=None):\n"
        f"        if name.partition('.')[0] in {absent!r}:\n"
        "            raise ModuleNotFoundError(f'no module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Absent)\n"
        f"for name in {names!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    assert home in pathlib.Path(module.__file__).parents, (name, module.__file__)\n"
        "print('imported', len(sys.modules))"
    )
    assert "imported" in run(sys.executable, "-c", code, cwd=tmp_path, path=installed)


def test_an_editable_install_follows_the_checkout(source: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # The dependencies and setuptools of this environment, but not its .pth files and so not its own editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--no-build-isolation", "--editable", source, cwd=tmp_path)
    module = source / "rendezvous" / "added_later.py"
    module.write_text("answer = 42\n")
    code = "from elastic_launch.rendezvous import added_later, messages; print(added_later.answer, messages.__file__)"
    answer, file = run(python, "-c", code, cwd=tmp_path).split()
    module.unlink()
    assert answer == "42"
    assert source in Path(file).parents
    for script in SCRIPTS:
        assert "usage" in run(python.with_name(script), "--help", cwd=tmp_path).lower()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_refuses_to_be_imported_under_its_bare_name(folder: str) -> None:
    said = fails(f"import {folder}", cwd=ROOT)
    assert f"import this package as elastic_launch.{folder}" in said


@pytest.mark.parametrize(
    "name",
    [
        "elastic_launch",
        "elastic_launch.rendezvous.main",
        "elastic_launch.launcher.main",
        "elastic_launch.k8s.command_line",
    ],
)
def test_importing_does_not_bring_a_framework(name: str, tmp_path: Path) -> None:
    code = f"import sys, {name}; print([name for name in ('torch', 'tensorflow', 'numpy') if name in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=tmp_path, path=ROOT).strip() == "[]"
