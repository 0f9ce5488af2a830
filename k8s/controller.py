"""The process in a job's controller pod: the rendezvous server, and the pods that it is to be served with.

    python3 -m elastic_launch.k8s.controller --job NAME

It may be killed at any moment and started again: the pods are in the cluster, what was asked for and how it has changed in
annotations of the job's object, the last formed generation in a ConfigMap (or etcd), and the agents say the rest when they
connect again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ElasticError, RendezvousError
from ..rendezvous import logs
from ..rendezvous.bearer import TokenFile
from ..rendezvous.http.face import Face
from ..rendezvous.membership.members import Timing
from ..rendezvous.server import Server
from ..rendezvous.stores.etcd.address import EtcdAddress
from ..rendezvous.stores.opening import open_etcd
from ..rendezvous.stores.store import Store
from .cluster import Cluster, Json
from .config_map_store import ConfigMapStore
from .errors import ClusterError
from .job_life import JobLife
from .naming import PORT, REQUEST_ANNOTATION, service_variable, store_name
from .request import JobRequest, decode

logger = logging.getLogger(__name__)

_KILLED = 128 + signal.SIGTERM  # not 0: a pod that succeeds would complete the job
_RETURN = 8.0  # seconds until agents find a controller that was started again: the Service has to follow it first
_PATIENCE = 1.0  # seconds between two attempts at an API server that does not answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the job's exit code, or 143 on SIGTERM, which leaves the job as it is."""
    parser = argparse.ArgumentParser(prog="elastic-controller", description=__doc__)
    parser.add_argument("--job", required=True, help="name of the job's object")
    parser.add_argument("--namespace", default=os.environ.get("ELASTIC_NAMESPACE", ""))
    parser.add_argument("--port", type=int, default=PORT, help="where agents reach this server (default: %(default)s)")
    parser.add_argument("--server-address", default="", help="address for agents (default: that of the job's Service)")
    parser.add_argument("--token-file", type=Path, metavar="F", help="what agents have to show (default: nothing)")
    options = parser.parse_args(arguments)
    logs.configure("info")
    try:
        return asyncio.run(_until_killed(options))
    except ElasticError as error:
        logger.error("%s", error)
        return 1


async def _until_killed(options: argparse.Namespace) -> int:
    """A SIGTERM ends it at once, and the workers go on without it until the next one is there."""
    running = asyncio.ensure_future(_run(options))
    asked = asyncio.Event()

    def ask() -> None:
        if not asked.is_set():  # a second signal must not cut short what the first one began
            asked.set()
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    try:
        return await running
    except asyncio.CancelledError:
        return _KILLED


async def _run(options: argparse.Namespace) -> int:
    cluster = Cluster.connect(options.namespace)
    job = await _the_job(cluster, options.job)
    request = decode(job["metadata"]["annotations"][REQUEST_ANNOTATION])
    address = options.server_address or os.environ.get(service_variable(request.name), "")
    if not address:
        raise ClusterError(
            f"there is no Service {request.name}: the variable {service_variable(request.name)} is missing."
            f" Delete the job (elastic-job delete {request.name}) and submit it again"
        )
    server = await Server.start(
        _everywhere(),
        options.port,
        _store(cluster, request, job["metadata"]["uid"]),
        Timing(return_pause=_RETURN),
        face=Face(tokens=TokenFile(options.token_file) if options.token_file is not None else None),
    )
    logger.info("job %s is served at %s (listening on port %d)", request.name, address, options.port)
    life = JobLife(cluster, job, request, server, address)
    try:
        return await life.run()
    except asyncio.CancelledError:
        await life.leave()
        raise
    finally:
        life.stop()
        await server.stop()


async def _the_job(cluster: Cluster, name: str) -> Json:
    """Waits for an API server that does not answer; the workers can wait too."""
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, cluster.job, name)
        except RendezvousError:
            raise
        except ClusterError as error:
            logger.warning("job %s cannot be read: %s", name, error)
            await asyncio.sleep(_PATIENCE)


def _store(cluster: Cluster, request: JobRequest, uid: str) -> Store:
    """In an etcd, under keys of this very job: a later one of its name begins anew."""
    if not request.store:
        return ConfigMapStore(cluster, store_name(request.name))
    address = EtcdAddress.parse(request.store)
    return open_etcd(replace(address, prefix=f"{address.prefix}{uid}/"))


def _everywhere() -> str:
    """All addresses of this pod, of both families where the node has IPv6."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6):
            return "::"
    except OSError:
        return "0.0.0.0"


if __name__ == "__main__":
    sys.exit(main())
