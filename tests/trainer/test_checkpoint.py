"""The last resort: complete files or none, the newest intact one counts, and nothing that goes wrong stops the training."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import threading
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_launch.errors import CheckpointError, StateMismatchError, UsageError
from elastic_launch.trainer import checkpoint_file
from elastic_launch.trainer.checkpoint import Checkpoints
from elastic_launch.trainer.pytorch.state.replica import TorchReplica
from elastic_launch.trainer.state.payload import Buffers

from .trainees import BUILDERS, Trainee, build


def saved(directory: Path, trainee: Trainee, steps: list[int], keep: int = 5) -> Checkpoints:
    """Checkpoints of these steps, of a trainee that trains one step before each."""
    checkpoints = Checkpoints(directory, keep=keep, every_steps=1)
    for step in steps:
        trainee.train(step, 1)
        assert checkpoints.save_if_due(trainee.replica, step)
        checkpoints.close()
    return checkpoints


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("kind", BUILDERS)
def test_restored_state_is_bitwise_the_saved_one(tmp_path: Path, kind: str) -> None:
    source, target = build(kind, 1), build(kind, 2)
    saved(tmp_path, source, [1, 2, 3])
    assert Checkpoints(tmp_path).restore(target.replica) == 3
    assert target.replica.digest() == source.replica.digest()
    assert target.train(4, 2) == source.train(4, 2)


def test_training_during_the_writing_does_not_change_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = build("adam", 1), build("adam", 2)
    source.train(0, 2)
    go, write = threading.Event(), checkpoint_file.write
    monkeypatch.setattr("elastic_launch.trainer.checkpoint.write", lambda *a: (go.wait(20), write(*a))[1])
    digest = source.replica.digest()
    checkpoints = Checkpoints(tmp_path, every_steps=1)
    assert checkpoints.save_if_due(source.replica, 2)
    source.train(2, 1)
    assert not checkpoints.save_if_due(source.replica, 3)  # the former one is still being written
    go.set()
    checkpoints.close()
    assert checkpoints.save_if_due(source.replica, 4)
    checkpoints.close()
    (tmp_path / "step-000000000004.ckpt").unlink()
    assert checkpoints.restore(target.replica) == 2
    assert target.replica.digest() == digest


def test_first_copy_of_a_large_state_waits_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launch.trainer.checkpoint._LARGE", 0)
    source, target = build("adam", 1), build("adam", 2)
    source.train(0, 2)
    checkpoints = Checkpoints(tmp_path, every_steps=1)
    assert not checkpoints.save_if_due(source.replica, 2)
    checkpoints.close()
    source.train(2, 1)
    assert checkpoints.save_if_due(source.replica, 3)
    checkpoints.close()
    assert checkpoints.restore(target.replica) == 3
    assert source.replica.digest() == target.replica.digest()


def test_the_last_n_stay(tmp_path: Path) -> None:
    saved(tmp_path, build("sgd", 1), [1, 2, 3, 4], keep=2)
    assert names(tmp_path) == ["step-000000000003.ckpt", "step-000000000004.ckpt"]


def test_checkpoint_is_due_by_steps_or_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    replica = build("sgd", 1).replica
    by_steps = Checkpoints(tmp_path / "steps", every_steps=10)
    assert [by_steps.is_due(step) for step in (1, 9, 10, 11)] == [False, False, True, True]
    by_steps.write_now(replica, 3)
    by_time = Checkpoints(tmp_path / "time", every_steps=None, every_seconds=60)
    assert not by_time.is_due(10**6)
    now += 60
    assert by_time.is_due(1)


def test_last_holder_writes_at_once(tmp_path: Path) -> None:
    source, target = build("adam", 1), build("adam", 2)
    source.train(0, 3)
    path = Checkpoints(tmp_path).write_now(source.replica, 3)
    assert path.exists() and Checkpoints(tmp_path).newest() == (path, 3)
    assert Checkpoints(tmp_path).restore(target.replica) == 3
    assert target.replica.digest() == source.replica.digest()


class TestDamage:
    @pytest.mark.parametrize("what", ["cut", "grown", "empty", "payload bit", "meta bit", "magic", "length", "sum"])
    def test_damaged_newest_falls_back_loudly_to_the_one_before(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
    ) -> None:
        source, target = build("adam", 1), build("adam", 2)
        saved(tmp_path, source, [1])
        digest = source.replica.digest()
        saved(tmp_path, source, [2])
        newest = tmp_path / "step-000000000002.ckpt"
        data = bytearray(newest.read_bytes())
        at = {"payload bit": -100, "meta bit": 60, "magic": 0, "length": 30, "sum": -1}
        if what in at:
            data[at[what]] ^= 4
        newest.write_bytes(
            data[:-5] if what == "cut" else data + b"x" if what == "grown" else b"" if what == "empty" else data
        )
        checkpoints = Checkpoints(tmp_path)
        assert checkpoints.newest() == (tmp_path / "step-000000000001.ckpt", 1)
        assert f"DAMAGED CHECKPOINT {newest}" in caplog.text
        assert checkpoints.restore(target.replica) == 1
        assert target.replica.digest() == digest
        assert "step-000000000002.damaged" in names(
            tmp_path
        )  # it does not stand before later ones, and can be looked at
        saved(tmp_path, target, [2])
        assert Checkpoints(tmp_path).newest() == (newest, 2)

    def test_nothing_intact_is_an_error(self, tmp_path: Path) -> None:
        checkpoints = saved(tmp_path, build("sgd", 1), [1])
        (tmp_path / "step-000000000001.ckpt").write_bytes(b"nothing of that kind")
        assert checkpoints.newest() is None
        with pytest.raises(CheckpointError, match="no intact checkpoint in"):
            checkpoints.restore(build("sgd", 2).replica)

    def test_other_files_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "step-000000000099.ckpt.bak").write_text("mine")
        checkpoints = saved(tmp_path, build("sgd", 1), [1, 2], keep=1)
        newest = checkpoints.newest()
        assert newest is not None and newest[1] == 2
        assert names(tmp_path) == ["notes.txt", "step-000000000002.ckpt", "step-000000000099.ckpt.bak"]

    def test_checkpoint_of_another_model_is_refused_by_name(self, tmp_path: Path) -> None:
        saved(tmp_path, build("sgd", 1), [1])
        other = TorchReplica()
        other.add_model("model", torch.nn.Linear(2, 2))
        with pytest.raises(StateMismatchError, match="model parameter"):
            Checkpoints(tmp_path).restore(other)

    def test_intact_file_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoints = saved(tmp_path, build("sgd", 1), [1])
        newest = checkpoints.newest()
        monkeypatch.setattr("elastic_launch.trainer.checkpoint.verify", lambda path: pytest.fail("read again"))
        assert checkpoints.newest() == newest


class TestTrouble:
    def test_directory_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match=r"checkpoint directory .*/file/below cannot be made"):
            Checkpoints(tmp_path / "file" / "below")

    @pytest.mark.parametrize(
        "options", [{"keep": 0}, {"every_steps": 0}, {"every_seconds": 0.0}, {"every_seconds": float("nan")}]
    )
    def test_numbers_without_sense_are_refused(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            Checkpoints(tmp_path, **options)

    def test_directory_that_vanishes_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        trainee = build("sgd", 1)
        checkpoints = Checkpoints(tmp_path / "gone", every_steps=1)
        (tmp_path / "gone").rmdir()
        assert checkpoints.save_if_due(trainee.replica, 1)
        checkpoints.close()
        assert "the checkpoint of step 1 could not be written" in caplog.text
        assert "training goes on without it" in caplog.text
        with pytest.raises(CheckpointError, match="the checkpoint of step 1 could not be written"):
            checkpoints.write_now(trainee.replica, 1)
        assert checkpoints.newest() is None

    def test_full_disk_is_a_warning_and_leaves_the_former_file(self, tmp_path: Path) -> None:
        mine, its = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=write_beyond_the_limit, args=(its, tmp_path), daemon=True
        )
        process.start()
        warnings = mine.recv()
        process.join(20)
        assert "the checkpoint of step 2 could not be written" in warnings
        assert names(tmp_path) == ["step-000000000001.ckpt"]
        newest = Checkpoints(tmp_path).newest()
        assert newest is not None and newest[1] == 1

    def test_state_that_cannot_be_written_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        replica, box = TorchReplica(), [1]
        replica.register("box", box)
        box.append(threading.Lock())  # type: ignore[arg-type]
        checkpoints = Checkpoints(tmp_path, every_steps=1)
        assert not checkpoints.save_if_due(replica, 1)
        assert not checkpoints.save_if_due(replica, 1)  # and not again at once
        assert "no checkpoint of step 1: box[1] of type lock cannot be replicated" in caplog.text

    def test_writer_that_hangs_does_not_hold_the_end_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        go = threading.Event()
        monkeypatch.setattr("elastic_launch.trainer.checkpoint.write", lambda *a: go.wait(20))
        checkpoints = Checkpoints(tmp_path, every_steps=1)
        assert checkpoints.save_if_due(build("sgd", 1).replica, 1)
        checkpoints.close(patience=0.01)
        assert "still not written after 0.01 s" in caplog.text
        go.set()
        checkpoints.close()

    def test_kill_in_the_middle_leaves_the_former_file_intact(self, tmp_path: Path) -> None:
        trainee, restored = build("adam", 1), build("adam", 2)
        saved(tmp_path, trainee, [1])
        digest = trainee.replica.digest()
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        process = context.Process(target=hang_while_writing, args=(its, tmp_path), daemon=True)
        process.start()
        assert mine.recv() == "in the middle"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
        (left,) = tmp_path.glob(".step-*.tmp")
        assert left.stat().st_size > 1000
        checkpoints = Checkpoints(tmp_path, every_steps=1)
        assert checkpoints.restore(restored.replica) == 1
        assert restored.replica.digest() == digest
        assert checkpoints.save_if_due(restored.replica, 2)
        checkpoints.close()
        assert names(tmp_path) == ["step-000000000001.ckpt", "step-000000000002.ckpt"]


class HangingPayload(Buffers):
    """Tells when its second chunk is asked for, and never gives it."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__([memoryview(bytearray(20 << 20))])
        self.pipe = pipe

    def cursor(self) -> HangingPayload:
        return self

    def load(self, start: int, stop: int) -> list[memoryview]:
        if start:
            self.pipe.send("in the middle")
            threading.Event().wait()
        return super().load(start, stop)


def hang_while_writing(pipe: Pipe, directory: Path) -> None:
    checkpoint_file.write(directory, 2, b"meta", HangingPayload(pipe))


def write_beyond_the_limit(pipe: Pipe, directory: Path) -> None:
    """A file may not grow beyond a limit: the same error path as a disk that is full."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("elastic_launch").addHandler(handler)
    trainee = build("adam", 1)
    checkpoints = saved(directory, trainee, [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    trainee.train(2, 1)
    assert checkpoints.save_if_due(trainee.replica, 2)
    checkpoints.close()
    trainee.train(3, 1)
    pipe.send("\n".join(messages))
