"""`fit`: Keras's training loop in units of the job's steps, which all members take together or not at all."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.trainers.data_adapters import array_slicing

from ...errors import UsageError
from .callbacks import Callbacks
from .engine import Engine, Share, engine_for
from .feed import Feed
from .job import FitJob, join
from .sources import DEFAULT_BATCH, source_for
from .validation import Validation


def fit(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    epochs: int = 1,
    global_batch: int | None = None,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    seed: int = 0,
    checkpoint: str | None = None,
    checkpoint_every: int = 100,
) -> Any:
    """`model.fit` on a job whose workers may come and go; returns the History, the same on every worker.

    `global_batch` samples make a step over all workers (32 if not said; a data set's own batches are global batches).
    `seed` decides the order of the samples. `checkpoint` is a directory for the last resort, written every
    `checkpoint_every` steps. All else is as in `model.fit`. Once in a process.
    """
    engine = engine_for(model)
    if validation_split and validation_data is None:
        arrays, validation_data = array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
        x, y, sample_weight = arrays
    source = source_for(
        x,
        y,
        sample_weight=sample_weight,
        class_weight=class_weight,
        batch=global_batch,
        steps=steps_per_epoch,
        shuffle=shuffle,
        seed=seed,
    )
    if source.batches is None and source.is_endless and steps_per_epoch is None:
        raise UsageError("the data has no end: say steps_per_epoch=")
    spec = source.spec()
    engine.build(spec)
    engine.prepare(spec)
    validation_source = None
    if validation_data is not None:
        val_x, val_y, val_weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        validation_source = source_for(
            val_x,
            val_y,
            sample_weight=val_weight,
            batch=validation_batch_size or global_batch or DEFAULT_BATCH,
            fixed=True,
        )

    told = Callbacks(callbacks, model, verbose, epochs, steps_per_epoch or source.batches, lambda: job.rank == 0)
    validation = None
    if validation_source is not None:
        validation = Validation(validation_source, validation_steps, validation_freq, engine, told)
    job = join(model, seed, checkpoint, checkpoint_every)
    feed = Feed(job, source, steps_per_epoch)
    return Fit(job, engine, feed, told, validation).run(initial_epoch, epochs)


class Fit:
    """One training run of one worker."""

    def __init__(
        self, job: FitJob, engine: Engine, feed: Feed, callbacks: Callbacks, validation: Validation | None
    ) -> None:
        self._job = job
        self._engine = engine
        self._model = engine.model
        self._feed = feed
        self._callbacks = callbacks
        self._hooks = callbacks.hooks
        self._validation = validation
        self._begun = {"epoch": -1}
        job.add_loader(feed)
        job.replicate(self._begun, (callbacks.state, callbacks.take_state))

    def run(self, initial_epoch: int, epochs: int) -> Any:
        self._model.stop_training = False
        self._hooks.on_train_begin()
        self._callbacks.take_again()
        logs = None
        for number in self._job.epochs(epochs - initial_epoch):
            logs = self._epoch(initial_epoch + number)
            if self._model.stop_training:
                self._job.stop()
        if epochs > 0:
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)
        self._hooks.on_train_end(logs)
        return self._callbacks.history

    def _epoch(self, epoch: int) -> dict[str, Any]:
        if self._begun["epoch"] != epoch:  # else this worker has come in the middle of it
            self._model.reset_metrics()
            self._hooks.on_epoch_begin(epoch)
            self._begun["epoch"] = epoch
        self._engine.set_training(True)
        last = self._steps()
        self._engine.set_training(False)
        logs = dict(self._model._get_metrics_result_or_logs(last))
        if self._validation is not None and self._validation.is_due(epoch):
            logs |= {f"val_{name}": value for name, value in self._validation.run(self._job).items()}
        self._hooks.on_epoch_end(epoch, logs)
        return logs

    def _steps(self) -> dict[str, Any]:
        """The rest of the epoch's steps; returns the logs of the last one."""
        logs: dict[str, Any] = {}
        begun = -1
        for batch in self._feed:
            number = self._feed.cursor.consumed
            if number != begun:  # else it was told of this step already, which was unwound
                begun = number
                self._hooks.on_train_batch_begin(number)
            with self._job.step() as step:
                results = self._engine.compute(batch, self._job.rank)
                if self._job.world_size > 1:
                    sums, tables = self._engine.pack(results, Share(self._job.rank, self._job.gradient_weight))
                    results = self._engine.unpack(*self._job.exchange(sums, tables), results)
                step.vote()
                logs = self._engine.apply(results)
            if not step.committed:
                continue
            self._hooks.on_train_batch_end(number, logs)
            if self._model.stop_training:
                self._job.stop()
                if self._job.world_size == 1:
                    break  # with others, after the step in which all have agreed
        if self._job.stopped:
            self._model.stop_training = True
        return logs
