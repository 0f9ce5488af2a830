"""Callbacks of several members: one writes, all know, and who joins or takes over goes on where the others are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

keras = pytest.importorskip("keras")

from elastic_launch.trainer.keras.callbacks import Callbacks  # noqa: E402

from .models import classifier  # noqa: E402


def told(callbacks: list[Any], is_first: bool | list[bool] = True) -> Callbacks:
    first = is_first if isinstance(is_first, list) else [is_first]
    return Callbacks(callbacks, classifier(), 0, 5, 4, lambda: first[0])


def test_a_joiner_takes_over_what_the_survivors_callbacks_know() -> None:
    stopping = [keras.callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True) for _ in range(2)]
    survivor, joiner = (told([each]) for each in stopping)
    survivor.hooks.on_train_begin()
    for epoch, loss in enumerate([0.5, 0.7, 0.6]):
        survivor.hooks.on_epoch_end(epoch, {"loss": loss})
    joiner.hooks.on_train_begin()
    joiner.take_state(survivor.state())
    assert (stopping[1].best, stopping[1].wait, stopping[1].best_epoch) == (0.5, 2, 0)
    assert len(stopping[1].best_weights) == 4
    assert joiner.history.history == {"loss": [0.5, 0.7, 0.6]} and joiner.history.epoch == [0, 1, 2]
    assert stopping[1].model is joiner.hooks.model is not survivor.hooks.model


def test_what_cannot_travel_stays_each_members_own() -> None:
    class Own(keras.callbacks.Callback):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number, self.lock, self.kept = number, threading.Lock(), lambda: number

    own = [Own(1), Own(2)]
    survivor, joiner = (told([each]) for each in own)
    joiner.take_state(survivor.state())
    assert (own[1].number, own[1].kept()) == (1, 2) and own[1].lock is not own[0].lock


def test_only_rank_0_saves_and_all_know_what_is_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "0.weights.h5", tmp_path / "1.weights.h5"]
    best = [
        keras.callbacks.ModelCheckpoint(path, "loss", save_best_only=True, save_weights_only=True, verbose=1)
        for path in paths
    ]
    ranks = [[True], [False]]
    members = [told([each], first) for each, first in zip(best, ranks, strict=True)]
    for member in members:
        member.hooks.on_train_begin()
        member.hooks.on_epoch_begin(0)
        member.hooks.on_epoch_end(0, {"loss": 0.5})
    assert [path.exists() for path in paths] == [True, False]
    assert best[1].best == 0.5 and best[1].model is members[1].hooks.model
    assert capsys.readouterr().out.count("saving model to") == 2, "rank 0 alone says that it begins and that it is done"
    ranks[1][0] = True
    members[1].hooks.on_epoch_end(1, {"loss": 0.6})
    assert not paths[1].exists(), "it knows that an earlier epoch was better"
    members[1].hooks.on_epoch_end(2, {"loss": 0.4})
    assert paths[1].exists()


def test_the_next_rank_0_goes_on_in_the_log_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    ranks = [[True], [False]]
    members = [told([keras.callbacks.CSVLogger(path)], first) for first in ranks]
    for member in members:
        member.hooks.on_train_begin()
    for epoch in range(3):
        ranks[1][0] = epoch == 2
        for member in members[1:] if epoch == 2 else members:
            member.hooks.on_epoch_begin(epoch)
            member.hooks.on_epoch_end(epoch, {"loss": epoch / 2})
    members[1].hooks.on_train_end()
    assert [line.split(",")[:2] for line in path.read_text().splitlines()] == [
        ["epoch", "loss"], ["0", "0.0"], ["1", "0.5"], ["2", "1.0"],
    ]  # fmt: skip
