"""The callbacks of a fit on several members: who writes and prints, and how their state follows the job.

Every member has the same callbacks and calls their hooks with the same logs, so that what they decide is the same. Those
that write or print do so on rank 0 alone. A worker that joins takes over their attributes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import keras

from ...errors import UsageError

_HOOKS = [
    f"on_{name}"
    for name in (
        "epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end", "test_begin", "test_end", "test_batch_begin",
        "test_batch_end", "train_begin", "train_end", "batch_begin", "batch_end",
    )
]  # fmt: skip
_OWN = {"_model", "model", "params", "validation_data"}  # what each member has its own of

IsFirst = Callable[[], bool]


class OnFirst(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes hooks on to `inner` on rank 0 only. A member that becomes rank 0 begins there and then."""

    def __init__(self, inner: Any, is_first: IsFirst) -> None:
        super().__init__()
        self.inner = inner
        self._is_first = is_first
        self._begun = False
        self._train_logs: Any = None
        self._epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._train_logs = logs  # which rank this is turns out with the first epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        began = self._begin()
        self._epoch = epoch
        if began:
            self.inner.on_epoch_begin(epoch, logs)

    def _begin(self) -> bool:
        """Whether `inner` is to be told. Begins it first if it has not begun."""
        if not self._is_first():
            return False
        if not self._begun:
            self._begun = True
            if self._epoch is not None and hasattr(self.inner, "append"):
                self.inner.append = True  # a CSVLogger goes on in the file that another worker has begun
            self.inner.set_params(self.params)
            self.inner.set_model(self.model)
            self.inner.on_train_begin(self._train_logs)
            if self._epoch is not None:
                self.inner.on_epoch_begin(self._epoch)
        return True


class SavingOnFirst(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes hooks on to a ModelCheckpoint on every member, so that all know what is the best; only rank 0 saves and prints."""

    def __init__(self, inner: Any, is_first: IsFirst) -> None:
        super().__init__()
        self.inner = inner
        self._is_first = is_first

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.inner.set_model(model)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.inner.set_params(params)


class _NotSaved:
    """A model to those that want to save it, where another member does."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def save(self, *_: Any, **__: Any) -> None: ...

    save_weights = export = save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _pass_on_first(hook: str) -> Any:
    def passing(self: OnFirst, *arguments: Any, **keywords: Any) -> None:
        if self._begin():
            getattr(self.inner, hook)(*arguments, **keywords)

    return passing


def _pass_on_saving(hook: str) -> Any:
    def passing(self: SavingOnFirst, *arguments: Any, **keywords: Any) -> None:
        inner = self.inner
        if hook in ("on_train_begin", "on_train_end") or self._is_first():
            getattr(inner, hook)(*arguments, **keywords)
            return
        verbose, inner.verbose = inner.verbose, 0
        inner.set_model(_NotSaved(self.model))
        try:
            getattr(inner, hook)(*arguments, **keywords)
        finally:
            inner.verbose = verbose
            inner.set_model(self.model)

    return passing


for _hook in _HOOKS:
    if _hook not in vars(OnFirst):
        setattr(OnFirst, _hook, _pass_on_first(_hook))
    setattr(SavingOnFirst, _hook, _pass_on_saving(_hook))


class Callbacks:
    """The callbacks of one fit: `hooks` is told of what happens, `state` and `take_state` are what a joiner receives."""

    def __init__(
        self, given: Any, model: keras.Model, verbose: Any, epochs: int, steps: int | None, is_first: IsFirst
    ) -> None:
        users = _flat(given)
        self._stateful = [callback for callback in users if not isinstance(callback, _writers())]
        self.listens_to_test_batches = any(
            not _is_default(callback, hook)
            for callback in users
            for hook in ("on_test_batch_begin", "on_test_batch_end")
        )
        wrapped = [_wrapped(callback, is_first) for callback in users]
        self.hooks = keras.callbacks.CallbackList(wrapped, add_history=True, add_progbar=False)
        history = self.hooks._history
        if history not in self._stateful:
            self._stateful.append(history)
        if verbose != 0 and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in users):
            self.hooks.callbacks.append(OnFirst(keras.callbacks.ProgbarLogger(), is_first))
        # Hooks run where they are called: on a thread beside, they would see the state of a later step.
        self.hooks._async_train = self.hooks._async_test = False
        self.hooks.set_model(model)
        self.hooks.set_params({"verbose": verbose, "epochs": epochs, "steps": steps})
        self._received: bytes | None = None

    @property
    def history(self) -> Any:
        return self.hooks._history

    def state(self) -> bytes:
        """The attributes of all callbacks that can be taken to another process."""
        return pickle.dumps([_attributes(callback) for callback in self._stateful])

    def take_state(self, state: bytes) -> None:
        self._received = state
        self.take_again()

    def take_again(self) -> None:
        """Once more what was received, after hooks that set a callback back to its beginning."""
        if self._received is None:
            return
        for callback, attributes in zip(self._stateful, pickle.loads(self._received), strict=True):
            for name, value in attributes.items():
                setattr(callback, name, pickle.loads(value))


def _flat(given: Any) -> list[Any]:
    if isinstance(given, keras.callbacks.CallbackList):
        return [each for each in given.callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
    users = keras.tree.flatten(given) if given else []
    for callback in users:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UsageError(
                "BackupAndRestore would set a worker back by itself: the job's state is in its workers, and on disk for the "
                "case that all are lost with fit(..., checkpoint=directory)"
            )
    return users


def _writers() -> tuple[type, ...]:
    callbacks = keras.callbacks
    return (callbacks.CSVLogger, callbacks.TensorBoard, callbacks.RemoteMonitor, callbacks.ProgbarLogger)


def _wrapped(callback: Any, is_first: IsFirst) -> Any:
    if isinstance(callback, _writers()):
        return OnFirst(callback, is_first)
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return SavingOnFirst(callback, is_first)
    return callback


def _is_default(callback: Any, hook: str) -> bool:
    return getattr(getattr(callback, hook), "__func__", None) is getattr(keras.callbacks.Callback, hook)


def _attributes(callback: Any) -> dict[str, bytes]:
    found = {}
    for name, value in vars(callback).items():
        if name in _OWN:
            continue
        stream = io.BytesIO()
        try:
            _PlainPickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception:
            continue  # an open file, a lock, a lambda: each member keeps its own
        found[name] = stream.getvalue()
    return found


class _PlainPickler(pickle.Pickler):
    """Refuses what belongs to the model: that is replicated already, and would come as a copy."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, keras.Variable)):
            raise pickle.PicklingError(f"a {type(value).__name__} is not plain data")
        return NotImplemented
