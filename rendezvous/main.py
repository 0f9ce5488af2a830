"""`elastic-rendezvous`: the rendezvous server as a process of its own, for jobs on several hosts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..completion import PrintCompletion
from ..errors import ElasticError, UsageError
from ..help import HelpFormatter
from ..nearest import Parser
from . import logs
from .bearer import TokenFile
from .http.app import Election
from .http.face import Face
from .http.limits import Limits
from .membership.members import Timing
from .room import allow_many_connections, keep_collections_short
from .server import Server
from .stores.etcd.address import EXAMPLE, EtcdAddress
from .stores.etcd.process import own_etcd
from .stores.opening import open_etcd, open_store
from .stores.store import Store, StoreUnavailable
from .tls import server_context

DEFAULT_PORT = 29600

_DESCRIPTION = """\
Serve the rendezvous of elastic-launch jobs: the one place that decides who is in a job. Agents join
with --rendezvous http://HOST:PORT. One server serves any number of jobs; several that share an etcd
stand in for each other.
"""

_EPILOG = """\
examples:
  elastic-rendezvous
  elastic-rendezvous --port 29600 --store etcd://a:2379,b:2379,c:2379 --token-file tokens
  curl http://HOST:29600/v1/jobs                 # what the jobs are at

environment:
  ELASTIC_ETCD_PASSWORD    of the user that --store names, as in etcd://USER@HOST:2379

signals:
  SIGTERM, SIGINT    the server ends; its jobs are not over, and agents look for it, or for another
                     one on the same etcd

exit codes:
  0    ended by a signal
  1    it cannot serve: the port is taken, or the store cannot be used
  2    bad flags

see also: elastic-launch --help, elastic-job --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0, or 1 if it cannot serve."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    logs.configure(options.log_level, options.log_format)
    try:
        face = _face(options)
    except UsageError as error:
        parser.error(str(error))
    try:
        with _opened(options.store) as (store, towards):
            election = Election(options.advertise_url, options.leader_lease, towards) if towards else None
            asyncio.run(_serve(options.host, options.port, Timing(lease=options.lease), store, election, face))
    except ElasticError as error:
        print(f"elastic-rendezvous: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _opened(text: str) -> Iterator[tuple[Store, str]]:
    """The store that `--store` names, and HOST:PORT of where it is if several servers can share it."""
    if text == "memory":
        yield open_store(text), ""
        return
    with contextlib.ExitStack() as stack:
        if text == "etcd":
            address = stack.enter_context(own_etcd())
            print(f"elastic-rendezvous: started an etcd for trying out at {address.endpoints[0]}", flush=True)
        else:
            address = EtcdAddress.parse(text)
        yield open_etcd(address), address.endpoints[0]


async def _serve(host: str, port: int, timing: Timing, store: Store, election: Election | None, face: Face) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    allow_many_connections()
    if election is not None:
        with contextlib.suppress(
            StoreUnavailable
        ):  # an etcd that is not there may come; a password that is wrong stays so
            await store.get("leader")
    server = await Server.start(host, port, store, timing, election=election, face=face)
    keep_collections_short()
    print(f"elastic-rendezvous: serving {server.url} (listening on {host})", flush=True)
    stopping = asyncio.ensure_future(ended.wait())
    failing = asyncio.ensure_future(server.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failing.done():
        failing.result()
    await server.stop()


def _face(options: argparse.Namespace) -> Face:
    """UsageError for files that cannot be used, and flags that do not go together."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together: give both")
    if options.tls_client_ca is not None and options.tls_cert is None:
        raise UsageError("--tls-client-ca is for a server with --tls-cert and --tls-key: give them too")
    return Face(
        limits=Limits(jobs=options.max_jobs, agents=options.max_agents, keep_finished=options.keep_finished),
        tokens=TokenFile(options.token_file) if options.token_file is not None else None,
        open_metrics=options.open_metrics,
        tls=server_context(options.tls_cert, options.tls_key, options.tls_client_ca) if options.tls_cert else None,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="elastic-rendezvous",
        usage="elastic-rendezvous [flags]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--print-completion", action=PrintCompletion, whole=parser)
    parser.add_argument(
        "--host", default="0.0.0.0", metavar="A", help="where to listen (default: all of IPv4; '::' is IPv6 as well)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        metavar="PORT",
        help="where, 0 for any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=_seconds,
        default=Timing().lease,
        metavar="SECONDS",
        help="an agent that is silent for longer is taken for gone (default: %(default)s)",
    )
    parser.add_argument(
        "--store",
        default="memory",
        metavar="STORE",
        help=f"where decisions live: memory (this process, default), {EXAMPLE}, or etcd for one of its own, to try out",
    )
    parser.add_argument(
        "--advertise-url",
        default="",
        metavar="URL",
        help="with etcd: where agents reach this server when it leads (default: its address on the way to etcd)",
    )
    parser.add_argument(
        "--leader-lease",
        type=_seconds,
        default=Election().lease,
        metavar="SECONDS",
        help="with etcd: another server takes over from a leader that is silent for longer (default: %(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        metavar="LEVEL",
        help="what is written to standard error: debug, info, warning or error (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default="text",
        metavar="FORMAT",
        help="text, or json: one object a line (default: %(default)s)",
    )
    access = parser.add_argument_group("who may talk to it")
    access.add_argument(
        "--token-file",
        type=Path,
        metavar="F",
        help="tokens that are accepted, one a line, read again when the file changes (default: anybody may)",
    )
    access.add_argument("--open-metrics", action="store_true", help="/metrics wants no token")
    access.add_argument("--tls-cert", type=Path, metavar="F", help="serve https with this certificate (default: http)")
    access.add_argument("--tls-key", type=Path, metavar="F", help="its private key (default: none)")
    access.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="F",
        help="let in only whose certificate is signed by one of these (default: anybody)",
    )
    access.add_argument(
        "--keep-finished",
        type=_seconds,
        default=Limits().keep_finished,
        metavar="SECONDS",
        help="how long a job that has ended is shown, and its name is not free (default: %(default)s)",
    )
    access.add_argument(
        "--max-jobs", type=_count, default=Limits().jobs, metavar="N", help="most jobs at a time (default: %(default)s)"
    )
    access.add_argument(
        "--max-agents",
        type=_count,
        default=Limits().agents,
        metavar="N",
        help="most agents of a job (default: %(default)s)",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit: give a number of at least 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a lease: give a number of seconds from 0.1 to 3600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
