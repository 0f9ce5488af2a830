"""The door in front of `hvd.init()`: a process waits there, with all that it has imported, until it has a place in a ring.

Horovod itself would ask for its place in the middle of its initialisation, from a thread in which any failure aborts the
process, and only from the second time on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..ring.connected import shut_connected_to
from . import agent

_BUILDING_LIMIT = 5.0  # seconds; a ring that takes longer is one that will never be complete
_is_built = threading.Event()  # or is not begun


def put_up() -> None:
    """Before Horovod's modules for a framework are imported: they take these functions as they find them."""
    import horovod.common.basics
    import horovod.common.elastic

    basics: Any = horovod.common.basics.HorovodBasics
    basics.init = _behind_the_door(basics.init)
    elastic: Any = horovod.common.elastic
    elastic.run_fn = _saying_what_it_holds(elastic.run_fn)
    threading.Thread(target=_shut_broken_rings, name="broken-rings", daemon=True).start()


def _behind_the_door(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def pass_the_door(basics: Any, *arguments: Any, **named: Any) -> Any:
        if not basics.is_initialized():
            _import_what_comes_next()
            place = agent.ask_for_place()
            if place["leaves"]:
                raise SystemExit(0)
            os.environ.update(place["variables"])
        _is_built.clear()
        try:
            return init(basics, *arguments, **named)
        finally:
            _is_built.set()

    return pass_the_door


def _import_what_comes_next() -> None:
    """What the first optimizer imports takes seconds, in which those who are in the ring already would wait for this process."""
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")


def _saying_what_it_holds(run_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod calls the script's function each time that all have the state of rank 0."""

    @functools.wraps(run_fn)
    def run(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        @functools.wraps(function)
        def holding_the_state(*inner: Any, **keywords: Any) -> Any:
            agent.say_that_it_holds_the_state()
            return function(*inner, **keywords)

        return run_fn(holding_the_state, *arguments, **named)

    return run


def _shut_broken_rings() -> None:
    """Horovod keeps the sockets of a ring that has failed, so that peers wait for this process until their time is over.

    A ring that is being built is left alone for a moment: Horovod aborts the process if it fails then.
    """
    while True:
        try:
            addresses = agent.wait_for_cut()
        except agent.AgentGone:
            return
        _is_built.wait(_BUILDING_LIMIT)
        shut_connected_to(addresses)
