"""Worker processes that fetch batches ahead, kept alive while what is wanted next changes under them.

`torch.utils.data.DataLoader` starts its worker processes anew for each iteration, or, with `persistent_workers`, waits
at the start of each until everything that was prefetched for the last one has been computed. After a change of the
membership both would be paid by every member, with the ring waiting. So one iteration of the DataLoader lasts for ever
here: it is fed from a stream that can be replaced, and a number in shared memory tells the worker processes which
requests are not worth computing any more.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, get_worker_info

from ...shield import raise_shield_of_child

Collate = Callable[[list[Any]], Any]

_NOTHING = -1
_PR_SET_PDEATHSIG = 1


class Wanted(NamedTuple):
    """A batch: its samples, and the seed that the process's random generators get for it."""

    indices: list[int]
    seed: int = 0


class Request(NamedTuple):
    """What to fetch, nothing at the end of the stream; worth it as long as `version` is the current one."""

    version: int
    wanted: Wanted | None


class Fetched(NamedTuple):
    """The answer to a request. A failure travels as a value, because that of a dropped request concerns nobody."""

    version: int
    batch: Any = None
    failure: ExceptionWrapper | None = None
    at_end: bool = False


def fetch(dataset: Any, indices: list[int], collate: Collate) -> Any:
    """The samples at `indices` as one batch, as a DataLoader fetches them."""
    if getattr(dataset, "__getitems__", None):
        return collate(dataset.__getitems__(indices))
    return collate([dataset[index] for index in indices])


class _Interruptible:
    """A data set, seen between two samples of a batch that is no longer worth completing."""

    def __init__(self, dataset: Any, is_current: Callable[[], bool]) -> None:
        self._dataset = dataset
        self._is_current = is_current

    def __getitem__(self, index: int) -> Any:
        if not self._is_current():
            raise _Outdated
        return self._dataset[index]


class _Outdated(Exception):
    """The request under way is not worth completing."""


class _Answering:
    """What the DataLoader takes for its data set: answers requests, in the worker process."""

    def __init__(self, dataset: Any, collate: Collate, current: ctypes.c_int64) -> None:
        self.dataset = dataset
        self._collate = collate
        self._current = current

    def __getitems__(self, request: Request) -> Fetched:
        version, wanted = request

        def is_current() -> bool:
            return self._current.value == version

        if wanted is None or not is_current():
            return Fetched(version, at_end=wanted is None)
        whole = getattr(self.dataset, "__getitems__", None)
        source = self.dataset if whole else _Interruptible(self.dataset, is_current)
        _seed_everything(wanted.seed)
        try:
            return Fetched(version, batch=fetch(source, wanted.indices, self._collate))
        except _Outdated:
            return Fetched(version)
        except Exception:
            where = f"in DataLoader worker process {_worker().id}"
            return Fetched(version, failure=ExceptionWrapper(where=where))  # type: ignore[no-untyped-call]


def _seed_everything(seed: int) -> None:
    """So that random augmentation depends on the batch, not on which process fetches it or what was dropped before."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _worker() -> Any:
    info = get_worker_info()
    assert info is not None, "not in a worker process of a DataLoader"
    return info


class _Beginning:
    """First thing in each worker process."""

    def __init__(self, user_function: Callable[[int], None] | None, current: ctypes.c_int64) -> None:
        self._user_function = user_function
        self._current = current
        # The kernel takes the thread that started a process for its parent: only the main thread lasts long enough.
        self._dies_with_parent = threading.current_thread() is threading.main_thread()

    def __call__(self, worker_id: int) -> None:
        if self._dies_with_parent:
            # A forked process holds copies of the trainer's sockets: while it lives, peers do not see them closed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        raise_shield_of_child(lambda: self._current.value != _NOTHING)
        info = _worker()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # users' functions look for their own data set
        if self._user_function is not None:
            self._user_function(worker_id)


def _as_it_is(answer: Any) -> Any:
    return answer


class _Feed:
    """The endless `batch_sampler`: the requests of the present stream, then empty ones until it is replaced."""

    def __init__(self) -> None:
        self.version = 0
        self.stream: Iterator[Wanted] = iter(())

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Request:
        return Request(self.version, next(self.stream, None))


class Prefetcher:
    """Fetches a replaceable stream of batches ahead, in `num_workers` processes.

    Replacing the stream costs at most the rest of the samples that the processes are at (of the batches, for a data set
    with `__getitems__`), however much was prefetched. `options` go to the DataLoader.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        *,
        num_workers: int,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        **options: Any,
    ) -> None:
        context = multiprocessing_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self._current = context.RawValue(ctypes.c_int64, 0)
        self._feed = _Feed()
        self._loader: DataLoader[Any] = DataLoader(
            _Answering(dataset, collate, self._current),  # type: ignore[arg-type]
            batch_sampler=self._feed,  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            num_workers=num_workers,
            persistent_workers=True,
            worker_init_fn=_Beginning(worker_init_fn, self._current),
            multiprocessing_context=context,
            generator=torch.Generator(),  # the training process's own generator is left alone
            **options,
        )
        self._answers: Iterator[Fetched] | None = None

    def start(self) -> None:
        """Start the processes and wait until each has answered. Raises what the user's `worker_init_fn` raised."""
        if self._answers is None:
            self._answers = iter(self._loader)
            atexit.register(_give_up, self._current)  # runs before the DataLoader's own waiting for the processes
            for _ in range(self._loader.num_workers):
                next(self._answers)

    def drop(self) -> None:
        """Let the processes give up what they are at; `replace` says what to fetch instead."""
        self._feed.version += 1
        self._feed.stream = iter(())
        self._current.value = self._feed.version

    def replace(self, stream: Iterator[Wanted]) -> None:
        """Drop what was prefetched: the batches of `stream` come next."""
        self.drop()
        self._feed.stream = stream

    def take(self) -> Any:
        """The stream's next batch. Raises what the data set or the collate function raised for it."""
        assert self._answers is not None, "start() comes first"
        while True:
            answer = next(self._answers)
            if answer.version != self._feed.version:
                continue
            if answer.failure is not None:
                answer.failure.reraise()  # type: ignore[no-untyped-call]
            if answer.at_end:
                raise RuntimeError("a batch was asked for behind the end of the stream")
            return answer.batch

    def close(self) -> None:
        """End the processes; `start` starts others."""
        self.drop()
        self._answers = None
        self._loader._iterator = None


def _give_up(current: ctypes.c_int64) -> None:
    current.value = _NOTHING
