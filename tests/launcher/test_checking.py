"""`elastic-launch --check`, as a person calls it, on machines where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.running import ROOT
from tests.system.launching import Command

WITHOUT_NETWORK = ("unshare", "--net")


def check(*flags: str, inside: tuple[str, ...] = (), cwd: Path = ROOT, **environ: str) -> tuple[int, dict[str, str]]:
    """The exit code, and each line by what it is about, with the advice below it."""
    done = subprocess.run(
        [*inside, sys.executable, "-m", "elastic_launch.launcher.main", "--check", *flags],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environ},
    )
    assert not done.stderr, done.stderr
    found: dict[str, str] = {}
    about = ""
    for line in done.stdout.splitlines()[1:]:
        if line.startswith("        ") and "->" in line:
            found[about] += "\n" + line.strip()
        else:
            about = line[8:].split("  ")[0] if line.startswith("  ") else "verdict"
            found[about] = line.strip()
    return done.returncode, found


def test_a_machine_that_has_what_is_needed_passes() -> None:
    pytest.importorskip("torch")
    code, found = check()
    assert code == 0, found
    for about in (
        "python",
        "kernel",
        "processors",
        "memory",
        "open files",
        "processes",
        "clock",
        "interfaces",
        "host name",
    ):
        assert about in found
    assert found["loopback"].startswith("ok") and found["gloo"].startswith("ok")
    assert "gloo" in found["backends"]
    assert "none was given" in found["rendezvous"]
    assert "make a job fail" in found["verdict"] or found["verdict"] == "all is well"


def test_a_server_that_answers_is_looked_at_with_its_job_and_its_clock() -> None:
    server = Command("elastic_launch.rendezvous.main", ["--host", "127.0.0.1", "--port", "0"])
    try:
        code, found = check("--rendezvous", server.url, "--job", "digits")
        assert code == 0, found
        assert found["rendezvous"].startswith("ok")
        assert found["rendezvous"].endswith(f"{server.url} is ready, reached from 127.0.0.1")
        assert "'digits' is not known there yet" in found["job"]
        assert "the same as this host's" in found["server's clock"]
    finally:
        server.end()


def test_a_server_that_wants_a_token_is_a_failure_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    server = Command("elastic_launch.rendezvous.main", ["--port", "0", "--token-file", str(tmp_path / "token")])
    try:
        code, found = check("--rendezvous", server.url, "--token-file", str(tmp_path / "wrong"))
        assert code == 1
        assert (
            "the server wants another token" in found["job"]
            and "-> give the right one with --token-file" in found["job"]
        )
        assert check("--rendezvous", server.url, "--token-file", str(tmp_path / "token"))[0] == 0
    finally:
        server.end()


def test_a_server_that_does_not_answer_is_a_failure_with_the_way_out() -> None:
    code, found = check("--rendezvous", "http://127.0.0.1:9")
    assert code == 1
    assert found["rendezvous"].startswith("FAIL") and "http://127.0.0.1:9 does not answer" in found["rendezvous"]
    assert "-> is elastic-rendezvous running there" in found["rendezvous"]
    assert found["verdict"].startswith("1 of these would make a job fail")


def test_a_name_that_is_not_known_is_a_failure() -> None:
    code, found = check("--rendezvous", "http://no-such-host.invalid:29400")
    assert code == 1
    assert "no way to http://no-such-host.invalid:29400" in found["rendezvous"]


def test_a_python_without_torch_is_a_failure_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    code, found = check(PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert code == 1
    assert "libtorch_cpu.so: cannot open" in found["torch"] and "-> install it for" in found["torch"]


def test_gpus_that_torch_does_not_see_are_a_failure() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch sees GPUs here")
    code, found = check(CUDA_VISIBLE_DEVICES="0,1")
    assert code == 1
    assert "2 seen by the driver, none by torch" in found["GPUs"]


def test_a_host_without_a_network_is_found_out() -> None:
    if subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made here")
    code, found = check(inside=WITHOUT_NETWORK)
    assert code == 1
    assert found["loopback"].startswith("FAIL") and "ip link set lo up" in found["loopback"]


def test_few_descriptors_and_little_shared_memory_deserve_a_look() -> None:
    small = "mount -t tmpfs -o size=64m none /dev/shm && ulimit -n 256 && exec"
    inside = ("unshare", "--mount", "sh", "-c", small + ' "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    code, found = check(inside=inside)
    assert code == 0, found
    assert found["open files"].startswith("LOOK") and "ulimit -n" in found["open files"]
    assert "64 MiB" in found["/dev/shm"] and "--shm-size" in found["/dev/shm"]


def test_a_pod_without_a_server_is_found_out() -> None:
    code, found = check(KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert code == 1
    assert "-> give --rendezvous http://SERVICE:PORT" in found["rendezvous"]


def test_a_script_may_have_a_flag_of_that_name(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print('mine:', sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, "-m", "elastic_launch.launcher.main", str(script), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "mine: ['--check']" in done.stdout, done.stderr
