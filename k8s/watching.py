"""Following a set of objects of the cluster: list, then watch from the list's version, and list again when that ends badly.

A watch ends for many reasons, and may also just fall silent; some of them show as an error in the middle of a good
answer. So a watch has two limits: the server ends it after a while, and the client gives it up when nothing came for a
little longer. Whatever ends it otherwise (410, 500, 504, half a line) leads to a new list.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .cluster import Json, told
from .errors import ClusterError, Expired, Refused, Unreachable

logger = logging.getLogger(__name__)

_PAUSE = 1.0  # seconds between the end of one round and the next


@dataclass(frozen=True)
class WatchLimits:
    """Seconds. `server` is when the API server ends a watch, `silence` when the client gives one up."""

    connect: float = 2.0
    answer: float = 10.0
    server: int = 30
    silence: float = 35.0


@dataclass(frozen=True)
class Source:
    """What is followed: a list call of the official client, with its namespace and selectors."""

    call: Callable[..., Any]
    namespace: str
    selectors: dict[str, str]
    limits: WatchLimits = WatchLimits()

    def list(self) -> tuple[list[Json], str]:
        """All objects, and the version that they were read at."""
        limits = self.limits
        with told():
            answer = self.call(
                self.namespace,
                **self.selectors,
                _preload_content=False,
                _request_timeout=(limits.connect, limits.answer),
            )
            parsed = json.loads(answer.data)
        return parsed["items"], parsed["metadata"]["resourceVersion"]

    def events(self, version: str) -> Iterator[Json]:
        """What has happened since `version`, until the server ends the watch in order. Unreachable, Expired."""
        limits = self.limits
        with told():
            answer = self.call(
                self.namespace,
                **self.selectors,
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=limits.server,
                _preload_content=False,
                _request_timeout=(limits.connect, limits.silence),
            )
        try:
            for line in _lines(answer):
                yield _event(line)
        finally:
            answer.close()


class Cache:
    """The objects as they were last seen. Events that come twice or late change nothing."""

    def __init__(self) -> None:
        self.version = ""
        self._objects: dict[str, Json] = {}
        self._deleted: dict[str, None] = {}  # ids, oldest first

    def objects(self) -> list[Json]:
        return list(self._objects.values())

    def replace(self, items: list[Json], version: str) -> None:
        """What a list has shown. What was put in by hand since (`put`) is newer than it, and stays."""
        newer = {uid: known for uid, known in self._objects.items() if _version(known) > int(version)}
        self._objects = {
            item["metadata"]["uid"]: item for item in items if item["metadata"]["uid"] not in self._deleted
        }
        for uid, known in newer.items():
            self._objects.setdefault(uid, known)
        self.version = version

    def put(self, item: Json) -> None:
        """An object as a call other than the watch has shown it."""
        uid = item["metadata"]["uid"]
        known = self._objects.get(uid)
        if uid not in self._deleted and (known is None or _version(item) > _version(known)):
            self._objects[uid] = item

    def apply(self, event: Json) -> None:
        """One event of a watch. Expired or Unreachable if it says that the watch is over."""
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR" or not isinstance(item, dict):
            status = item if isinstance(item, dict) else {}
            error = Expired if status.get("code") == 410 else Unreachable
            raise error(f"the watch has ended: {status.get('message') or event}")
        metadata = item["metadata"]
        if kind in ("ADDED", "MODIFIED"):
            self.put(item)
        elif kind == "DELETED":
            self._objects.pop(metadata["uid"], None)
            self._deleted[metadata["uid"]] = None
            while len(self._deleted) > 1000:
                del self._deleted[next(iter(self._deleted))]
        if not self.version or int(metadata["resourceVersion"]) > int(self.version):
            self.version = metadata["resourceVersion"]


class Watcher:
    """Follows `source` on a thread of its own; `changed` is called there after every change of the cache."""

    def __init__(self, name: str, source: Source, changed: Callable[[], None]) -> None:
        self.cache = Cache()
        self.listed = threading.Event()
        """Set once everything has been seen."""
        self._source = source
        self._changed = changed
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._trouble: type[ClusterError] | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a watch that is silent; the thread ends with it."""
        self._stopping.set()

    def objects(self) -> list[Json]:
        with self._lock:
            return self.cache.objects()

    def put(self, item: Json) -> None:
        with self._lock:
            self.cache.put(item)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.round()
            except ClusterError as error:
                self._say_once(error)
            except Exception:
                logger.exception("%s has failed; listing again", self._thread.name)
            self._stopping.wait(_PAUSE * random.uniform(0.5, 1.0))

    def _say_once(self, error: ClusterError) -> None:
        """Of each kind, until a list succeeds: what is in the way may stay there for hours."""
        if type(error) is self._trouble:
            return
        self._trouble = type(error)
        hint = ": give this account the right to list and watch them" if isinstance(error, Refused) else ""
        logger.warning("%s: %s%s; listing again until it works", self._thread.name, error, hint)

    def round(self) -> None:
        """One list, and watches from there on, until something other than the server's own limit ends one."""
        items, version = self._source.list()
        with self._lock:
            self.cache.replace(items, version)
        if self._trouble is not None:
            logger.info("%s: the API server answers again", self._thread.name)
            self._trouble = None
        self.listed.set()
        self._changed()
        while not self._stopping.is_set():
            began = time.monotonic()
            for event in self._source.events(self.cache.version):
                with self._lock:
                    self.cache.apply(event)
                self._changed()
                if self._stopping.is_set():
                    return
            if time.monotonic() - began < self._source.limits.server / 10:
                return  # whoever ended it so soon, it was not the server in order


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    with told():
        for piece in answer.stream(65536):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
    if rest:
        raise Unreachable(f"the watch has ended in the middle of a line of {len(rest)} bytes")


def _event(line: bytes) -> Json:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Unreachable(f"the watch has sent what is no event: {line[:80]!r}") from error
    if not isinstance(event, dict):
        raise Unreachable(f"the watch has sent what is no event: {line[:80]!r}")
    return event


def _version(item: Json) -> int:
    return int(item["metadata"]["resourceVersion"])
