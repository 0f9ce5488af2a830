"""`elastic-job logs` and `wait`: what goes on until the job is over."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable

from .cluster import Cluster, Json
from .errors import ClusterError, NotFound, NotStarted, Refused, Unreachable
from .looking_up import controller_pods, find_job, last_status, result_of, worker_pods
from .naming import CONTROLLER, WORKER
from .pods import Pod, pod_of

TOO_LATE = 3  # exit code
_LOOK_AGAIN = 1.0  # seconds
_LAST_WORDS = 3.0  # seconds for what has yet to come when the job is over


def wait(cluster: Cluster, name: str, timeout: float | None) -> int:
    """The job's exit code."""
    limit = float("inf") if timeout is None else time.monotonic() + timeout
    is_silent = False
    while time.monotonic() < limit:
        try:
            result = result_of(find_job(cluster, name))
            is_silent = False
        except Unreachable as error:
            if not is_silent:
                print(f"elastic-job: {error}; trying again", file=sys.stderr, flush=True)
            result, is_silent = None, True
        if result is not None:
            if result.code:
                print(f"elastic-job: job {name} has failed: {result.reason}", file=sys.stderr)
            return result.code
        time.sleep(min(_LOOK_AGAIN, max(0.0, limit - time.monotonic())))
    print(f"elastic-job: job {name} is not over after {timeout:g} s", file=sys.stderr)
    return TOO_LATE


def logs(cluster: Cluster, name: str, rank: int | None, controller: bool, follow: bool, tail: int | None) -> int:
    """Every line bears its pod's own prefix. With `follow`, pods that come later are taken in.

    As long as there is nothing to be shown, what that waits for is said on stderr. As of `kubectl logs`, the exit code
    tells of the logs, not of the job: 1 if there was nothing at all. Refused if they must not be read.
    """
    readers: dict[str, threading.Thread] = {}
    printer = _Printer()
    container = CONTROLLER if controller else WORKER
    said = ""
    while True:
        try:
            over = result_of(find_job(cluster, name)) is not None
            for item in controller_pods(cluster, name) if controller else _chosen(cluster, name, rank):
                pod = pod_of(item)
                if pod.uid not in readers and pod.state != "pending":
                    arguments = (cluster, pod, container, follow, tail, printer)
                    reader = threading.Thread(target=_read, args=arguments, name=f"log-{pod.name}", daemon=True)
                    readers[pod.uid] = reader
                    reader.start()
            if over or not follow:
                _join(readers.values(), _LAST_WORDS if follow else None)
            if printer.refusal is not None:
                needed = "It takes the right to get pods/log, as k8s/manifests gives it"
                raise Refused(f"the logs of job {name} cannot be read: {printer.refusal}. {needed}")
            for uid in printer.take_unstarted():
                del readers[uid]
            if printer.has_printed:
                words = ""
            elif over:
                words = f"job {name} is over, and nothing is left of what it has written"
            else:
                words = what_is_awaited(cluster, name, rank, controller)
        except Unreachable as error:
            if not follow:
                raise
            over, words = False, f"{error}; trying again"
        if words and words != said:
            print(f"elastic-job: {words}", file=sys.stderr, flush=True)
        said = words
        if over or not follow:
            return 0 if readers else 1
        time.sleep(_LOOK_AGAIN)


def _join(threads: Iterable[threading.Thread], limit: float | None) -> None:
    """For at most `limit` seconds in all, for ever if it is None."""
    end = None if limit is None else time.monotonic() + limit
    for thread in threads:
        thread.join(None if end is None else max(0.0, end - time.monotonic()))


def what_is_awaited(cluster: Cluster, name: str, rank: int | None, controller: bool) -> str:
    """Why nothing of a job's output can be seen yet."""
    found = controller_pods(cluster, name)
    watched = found if controller else worker_pods(cluster, name)
    if not watched:
        if controller or not found:
            return f"job {name} has no pod yet: its controller has not been started"
        return f"job {name} has no workers yet: its controller is {_states(found)}"
    if rank is not None and not controller and not _chosen(cluster, name, rank):
        return f"no pod of job {name} has rank {rank} yet: {_states(watched)}"
    if any(pod_of(item).state != "pending" for item in watched):
        return f"job {name} has not written anything yet: {_states(watched)}"
    return f"nothing of job {name} has been started yet: {_states(watched)}"


def _states(items: list[Json]) -> str:
    """As "2 pods pending (Unschedulable: ...), 1 running"."""
    pods = [pod_of(item) for item in items]
    counts = Counter((pod.state, pod.trouble) for pod in pods)
    words = [f"{count} {state}{f' ({trouble})' if trouble else ''}" for (state, trouble), count in counts.items()]
    return f"{'1 pod' if len(pods) == 1 else f'{len(pods)} pods'}: {', '.join(words)}"


def _chosen(cluster: Cluster, name: str, rank: int | None) -> list[Json]:
    pods = worker_pods(cluster, name)
    if rank is None:
        return pods
    ids = [pod["uid"] for pod in last_status(cluster, name).get("pods", []) if rank in pod["ranks"]]
    return [item for item in pods if item["metadata"]["uid"] in ids]


class _Printer:
    """Whole lines only, whoever writes them; and what became of those who had none to write."""

    def __init__(self) -> None:
        self.has_printed = False
        self.refusal: Refused | None = None
        self._unstarted: list[str] = []
        self._lock = threading.Lock()

    def has_not_started(self, uid: str) -> None:
        with self._lock:
            self._unstarted.append(uid)

    def take_unstarted(self) -> list[str]:
        """The ids of the pods to be read once more."""
        with self._lock:
            taken, self._unstarted = self._unstarted, []
        return taken

    def lines(self, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            self.has_printed = True
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


def _read(cluster: Cluster, pod: Pod, container: str, follow: bool, tail: int | None, printer: _Printer) -> None:
    rest = b""
    try:
        for piece in cluster.log(pod.name, container, follow, tail):
            whole, separator, rest = (rest + piece).rpartition(b"\n")
            printer.lines(whole + separator)
    except NotFound:
        pass  # it is gone
    except NotStarted:
        printer.has_not_started(pod.uid)
    except Refused as error:
        printer.refusal = error
    except ClusterError as error:
        print(f"elastic-job: the log of pod {pod.name} breaks off: {error}", file=sys.stderr)
    if rest:
        printer.lines(rest + b"\n")
