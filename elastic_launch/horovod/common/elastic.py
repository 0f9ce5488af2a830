"""States that are committed, restored and made the same on all members, and the loop around the training function."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import collectives, world
from ..objects import of_any_rank
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

T = TypeVar("T")


class State:
    """Base of all states. `bcast_object` gives everybody rank 0's object; `get_rank` this worker's rank."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """To be called after each change of the membership, before the state is made the same: to rescale a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """The launcher's own news are what counts: they reach `check_host_updates` without this."""

    def commit(self) -> None:
        """Save the state, and take a change of the membership in here if one is wanted."""
        self.save()
        world.current().committed()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise `HostsUpdatedInterrupt`, on all members, if workers are to come or go. All members call it at one point."""
        here = world.current()
        here.wait_for_lease()
        if collectives.any_of(here.engine, here.wants_change, "elastic.check_host_updates"):
            here.leave_agreed()
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Keep what there is, in this process's memory."""
        raise NotImplementedError()

    def restore(self) -> None:
        """Go back to what was kept."""
        raise NotImplementedError()

    def sync(self) -> None:
        """Make the state the same on all members."""
        raise NotImplementedError()

    def reset(self) -> None:
        """Called after a change of the membership, before the callbacks."""


class ObjectState(State):
    """Plain values, each an attribute. They are copied when saved, so that a list that grows is a list that shrinks again."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state = kwargs
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        self._saved_state = {name: _copied(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            mine = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = from_source(self._bcast_object, mine)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, _copied(value))


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except TypeError:
        return value  # it cannot be copied, such as a lock


def from_source(bcast_object: Callable[..., Any], value: Any) -> Any:
    """The `value` of the member whose state counts; a function of the user's own gives that of rank 0."""
    if bcast_object in of_any_rank:
        return bcast_object(value, root_rank=world.current().source())
    return bcast_object(value)


def reset(failed: bool) -> None:
    """Into the next generation."""
    world.current().reset(failed)


def run_fn(func: Callable[..., T], reset: Callable[[bool], None] = reset) -> Callable[..., T]:
    """`func(state, ...)`, called again after each change of the membership, with the state made the same on all members."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> T:
        here = world.current()
        here.goes_on_after_changes()
        while True:
            try:
                here.source()
                state.sync()
                state.save()
                here.has_synced()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                failed = True
                state.restore()
            except HostsUpdatedInterrupt:
                failed = False
            while True:
                reset(failed)
                try:
                    state.on_reset()
                    break
                except HorovodInternalError:
                    failed = True  # a callback's own collective met the next change

    return wrapper
