"""`elastic-rendezvous`: the rendezvous server as a process of its own, for jobs on several hosts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence

from ..errors import ElasticError
from .etcd_address import EXAMPLE, EtcdAddress
from .etcd_process import own_etcd
from .members import Timing
from .open_store import open_etcd, open_store
from .server import Election, Server
from .store import Store

DEFAULT_PORT = 29600


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0, or 1 if it cannot serve."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        with _opened(options.store) as (store, towards):
            election = Election(options.advertise_url, options.leader_lease, towards) if towards else None
            asyncio.run(_serve(options.host, options.port, Timing(lease=options.lease), store, election))
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


async def _serve(host: str, port: int, timing: Timing, store: Store, election: Election | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = await Server.start(host, port, store, timing, election=election)
    print(f"elastic-rendezvous: serving {server.url} (listening on {host})", flush=True)
    stopping = asyncio.ensure_future(ended.wait())
    failing = asyncio.ensure_future(server.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failing.done():
        failing.result()
    await server.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="elastic-rendezvous",
        description="Serve the rendezvous of elastic-launch jobs: agents join with --rendezvous http://HOST:PORT.",
    )
    parser.add_argument(
        "--host", default="0.0.0.0", help="where to listen (default: all of IPv4; '::' is IPv6 as well)"
    )
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="0 for any free one (default: %(default)s)")
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
        "--log-level", choices=["debug", "info", "warning", "error"], default="info", help="default: %(default)s"
    )
    return parser


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
