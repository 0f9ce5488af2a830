"""Watching the pods of agents that something other than this package has created, and telling their rendezvous server.

    python3 -m elastic_launch.k8s.peers --pods app=digits --rendezvous http://HOST:29600 --job digits

`elastic-launch --watch-pods app=digits` runs this beside its agent; it may as well run in a pod of its own. As many as one
likes may watch: what they tell is true for all of them, and told twice it changes nothing.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import ElasticError, UsageError
from ..rendezvous import logs
from .cluster import Cluster
from .peer_news import Drained, News, news
from .pods import pod_of
from .server_face import NotThere, Over, ServerFace
from .watching import Source, Watcher

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 5.0  # seconds, also when nothing happens, while there is something to tell
_TRY_AGAIN = 1.0  # seconds, after the server has not answered
_IDLE = 60.0  # seconds


class Peers:
    """The pods that a selector names, and a job's server that is to know what becomes of them."""

    def __init__(self, cluster: Cluster, selector: str, server: ServerFace) -> None:
        self._server = server
        self._changed = threading.Event()
        self._seen: dict[str, str] = {}  # id -> name, of all pods ever seen
        self._settled: set[str] = set()  # ids of lost pods that the server knows to be gone, or has never known
        self._trouble = ""
        source = Source(cluster.core.list_namespaced_pod, cluster.namespace, {"label_selector": selector})
        self._watcher = Watcher("peers", source, self._changed.set)

    def run(self) -> None:
        """Until the process is ended."""
        self._watcher.start()
        self._watcher.listed.wait()
        while True:
            self._changed.clear()
            self._changed.wait(self._look())

    def _look(self) -> float:
        """Tells what there is to tell. Returns after how many seconds to look again if nothing happens."""
        pods = [pod_of(item) for item in self._watcher.objects()]
        self._seen |= {pod.uid: pod.name for pod in pods}
        present = {pod.uid for pod in pods}
        vanished = {uid: name for uid, name in self._seen.items() if uid not in present}
        lost = {*vanished, *(pod.uid for pod in pods if pod.is_lost)}
        leaving = {pod.uid for pod in pods if pod.is_leaving}
        if not (lost | leaving) - self._settled:
            return _IDLE
        try:
            for item in news(pods, vanished, frozenset(self._settled), self._server.workers(), time.time()):
                self._tell(item)
        except NotThere:
            pass  # no such job there yet, or any more
        except Over as over:
            logger.info("%s", over)
        except ElasticError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning("the rendezvous server cannot be told of its pods: %s", error)
            return _TRY_AGAIN
        self._trouble = ""
        self._settled |= lost
        self._forget(present)
        return _LOOK_AGAIN

    def _tell(self, item: News) -> None:
        try:
            if isinstance(item, Drained):
                self._server.drain(item.host)
                logger.info("pod %s is being deleted: its workers leave job %s", item.name, self._server.job)
            else:
                self._server.gone(item.agent, item.reason)
                self._settled.add(item.pod)
                logger.info("%s: job %s goes on without it", item.reason, self._server.job)
        except NotThere:
            pass  # another watcher was faster

    def _forget(self, present: set[str]) -> None:
        for uid in [uid for uid in self._seen if uid not in present and uid in self._settled]:
            del self._seen[uid]
            self._settled.discard(uid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns only if it cannot begin."""
    parser = argparse.ArgumentParser(prog="elastic-peers", description=__doc__)
    parser.add_argument("--pods", required=True, metavar="LABEL=VALUE", help="label selector of the agents' pods")
    parser.add_argument("--namespace", default="", help="(default: that of this pod)")
    parser.add_argument("--rendezvous", required=True, metavar="URL", help="as that of the agents")
    parser.add_argument("--job", default="default", help="as that of the agents (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, metavar="F", help="file with the server's token")
    parser.add_argument("--tls-ca", type=Path, metavar="F", help="certificates to trust for https")
    parser.add_argument("--tls-cert", type=Path, metavar="F", help="a certificate, for a server that wants one")
    parser.add_argument("--tls-key", type=Path, metavar="F", help="its private key")
    options = parser.parse_args(arguments)
    logs.configure("info")
    try:
        files = (options.token_file, options.tls_ca, options.tls_cert, options.tls_key)
        server = ServerFace(options.rendezvous.split(","), options.job, *files)
        Peers(Cluster.connect(options.namespace), options.pods, server).run()
    except UsageError as error:
        parser.error(str(error))
    except ElasticError as error:
        print(f"elastic-peers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
