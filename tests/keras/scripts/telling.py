"""A callback by which a fit of the tests writes its journal, and hears when it is to end."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import elastic_launch.keras as elastic

sys.path.append(str(Path(__file__).resolve().parents[2] / "system" / "scripts"))
from journal import Journal


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", required=True)
    parser.add_argument("--epochs", type=int, default=3, help="of an open-ended run, the fewest")
    parser.add_argument("--open-ended", action="store_true", help="until the test says so, then to the epoch's end")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")


class Journalling(keras.callbacks.Callback):
    """`but`: the shape of a variable that has no part in the sum of the weights."""

    def __init__(self, options: argparse.Namespace, but: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.journal = Journal(options.journal)
        self.options = options
        self.but = but
        self.epochs = 10**6 if options.open_ended else options.epochs
        self.epochs_seen = 0

    def on_train_begin(self, logs: Any = None) -> None:
        job = elastic.current_job()
        assert job is not None
        self.job = job
        job.on_change(lambda change: self.journal("change", **vars(change)))
        self.journal("ready", local_rank=self.journal.local_rank)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.options.pause)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        job, logs = self.job, logs or {}
        self.journal(
            "step", step=job.global_step, batch=batch, rank=job.rank, generation=job.generation, epoch=job.epoch,
            world_size=job.world_size, **logs,
        )  # fmt: skip

    def on_test_begin(self, logs: Any = None) -> None:
        self.journal.hold("evaluation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs_seen += 1
        self.journal("epoch", epoch=epoch, rank=self.job.rank, weights=self.weights(), **(logs or {}))
        enough = epoch + 1 >= self.options.epochs
        if self.options.open_ended and enough and self.journal.finish_wanted():
            self.model.stop_training = True

    def end(self, history: Any, **fields: Any) -> None:
        job = self.job
        self.journal(
            "end", samples=job.samples, epochs=job.epoch + job.stopped, steps=job.global_step, seen=self.epochs_seen,
            weights=self.weights(), lr=float(self.model.optimizer.learning_rate), history=history.history,
            epoch=history.epoch, frameworks=[name for name in ("tensorflow", "torch") if name in sys.modules], **fields,
        )  # fmt: skip

    def weights(self) -> float:
        """One number that every weight has a part in."""
        return float(sum(np.abs(each).sum() for each in self.model.get_weights() if each.shape != self.but))
