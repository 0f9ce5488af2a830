"""torchrun's flags, as of torch 2.13, and their `PET_*` variables, in this launcher's words: docs/torchrun-flags.md has the list.

Those that both launchers have (--nproc-per-node, --standalone, --max-restarts, --log-dir, --shutdown-timeout, -m) are
declared in own.py. Which of torchrun's flags cannot have a meaning here is said in torchrun_refusals.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ...errors import UsageError
from ..devices import workers_per_node
from .torchrun_refusals import check
from .torchrun_rendezvous import where_to_meet
from .words import Said, flag_of, from_flags, from_variables, is_on

PREFIX = "PET_"
_NUMBERS = ("monitor_interval", "node_rank", "master_port")
_SHARED = ("nproc_per_node", "standalone", "max_restarts", "log_dir", "shutdown_timeout", "module")
_OTHERS = (
    "nnodes", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "monitor_interval", "start_method",
    "event_log_handler", "role", "no_python", "run_path", "redirects", "tee", "local_ranks_filter",
    "duplicate_stdout_filters", "duplicate_stderr_filters", "node_rank", "master_addr", "master_port", "local_addr",
    "logs_specs", "numa_binding", "signals_to_handle", "virtual_local_rank",
)  # fmt: skip
NAMES = (*_OTHERS, *_SHARED)
# Of those that mean one word of this launcher's; those of the same name are left out.
_WORDS = {"rdzv_id": "job", "local_addr": "advertise_address"}
_NO_WORDS = (
    "nnodes", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "monitor_interval", "start_method", "node_rank",
    "master_addr", "master_port", "logs_specs",
)  # fmt: skip
EXAMPLES = ("elastic-launch --nnodes 1:4 --nproc-per-node 8 --rdzv-endpoint head:29400 train.py  # torchrun's",)
_SWITCH: dict[str, Any] = {"action": "store_const", "const": "1"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All values stay text, None where the flag is missing."""
    nodes = parser.add_argument_group("as with torchrun: nodes, and where they meet")
    nodes.add_argument("--nnodes", metavar="N|MIN:MAX", help="nodes, each of --nproc-per-node workers (default 1)")
    nodes.add_argument(
        "--rdzv-endpoint",
        metavar="HOST[:PORT]",
        help="the agent on this host serves the job there, all others join it (default: none; port 29400)",
    )
    nodes.add_argument("--rdzv-backend", metavar="NAME", help="c10d or static (default static)")
    nodes.add_argument("--rdzv-id", metavar="NAME", help="the same as --job, and its default")
    nodes.add_argument(
        "--rdzv-conf",
        metavar="K=V,...",
        help="join_timeout, read_timeout, timeout, is_host, rank; others are ignored (default: none)",
    )
    nodes.add_argument(
        "--node-rank", metavar="N", help="0 serves the job at --master-addr, the others join it there (default: none)"
    )
    nodes.add_argument("--master-addr", metavar="HOST", help="where node 0 serves (default 127.0.0.1)")
    nodes.add_argument("--master-port", metavar="PORT", help="its port (default 29500)")
    nodes.add_argument("--local-addr", metavar="A", help="the same as --advertise-address, and its default")
    workers = parser.add_argument_group("as with torchrun: workers")
    workers.add_argument("--role", metavar="NAME", help="the workers' ROLE_NAME (default: default)")
    workers.add_argument("--no-python", **_SWITCH, help="SCRIPT is any program")
    workers.add_argument("--run-path", **_SWITCH, help="SCRIPT is a Python script, whatever it looks like")
    workers.add_argument("--virtual-local-rank", **_SWITCH, help="each worker sees its own GPU alone, as LOCAL_RANK 0")
    workers.add_argument(
        "--numa-binding",
        metavar="MODE",
        help="bind workers near their GPUs: node, socket, exclusive or core-complex (default: not bound)",
    )
    workers.add_argument(
        "--signals-to-handle",
        metavar="S,...",
        help="signals on which this agent's workers leave the job (default SIGTERM,SIGINT,SIGHUP,SIGQUIT; SIGINT stops it)",
    )
    workers.add_argument(
        "--monitor-interval", metavar="S", help="a worker's end is seen at once, within any interval (default: at once)"
    )
    workers.add_argument(
        "--start-method", metavar="M", help="spawn, fork or forkserver: ignored, as for scripts by torchrun"
    )
    workers.add_argument(
        "--event-log-handler",
        metavar="NAME",
        help="console: each worker's end, and this agent's, also as a line of JSON; null: not (default null)",
    )
    output = parser.add_argument_group("as with torchrun: output")
    output.add_argument(
        "-r",
        "--redirects",
        metavar="R",
        help="streams that go to files alone: 0 to 3, or 0:1,1:2 by local rank (default 0)",
    )
    output.add_argument("-t", "--tee", metavar="R", help="streams that go to files too, as --redirects (default 0)")
    output.add_argument(
        "--local-ranks-filter", metavar="N,...", help="local ranks whose output is shown (default: all)"
    )
    for stream in ("stdout", "stderr"):
        output.add_argument(
            f"--duplicate-{stream}-filters",
            metavar="TEXT,...",
            help=f"lines of {stream} that contain one of these also go to a file of their own (two commas stand for one;"
            " default: none)",
        )
    output.add_argument("--logs-specs", metavar="NAME", help="refused: a class of torchrun's; see --log-dir")


def said(flags: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Said]:
    """UsageError for what cannot have a meaning here; it says what to use."""
    heard = {**from_variables(environ, NAMES, PREFIX), **from_flags(flags, _OTHERS)}
    if "shutdown_timeout" not in heard:
        heard |= from_variables(environ, ("shutdown_timeout",), "TORCH_ELASTIC_")
    elsewhere = _said_by_own_words("rendezvous", flags, environ)
    check(heard, elsewhere is not None)
    words = {_WORDS.get(name, name): value for name, value in heard.items() if name not in _NO_WORDS}
    if not _is_alone(_said_by_own_words("standalone", flags, environ) or heard.get("standalone")):
        words |= where_to_meet(heard, most_nodes=_nodes(heard.get("nnodes"))[1])
    for name in _NUMBERS:
        _check_number(heard.get(name))
    return {**_sizes(heard, flags, environ, described="endpoint" in words), **words}


def _said_by_own_words(name: str, flags: argparse.Namespace, environ: Mapping[str, str]) -> Said | None:
    return from_flags(flags, (name,)).get(name) or from_variables(environ, (name,)).get(name)


def _is_alone(given: Said | None) -> bool:
    try:
        return given is not None and is_on(given.value)
    except UsageError as error:
        raise UsageError(f"{given.where if given else ''} {error}") from None


def _check_number(given: Said | None) -> None:
    if given is not None:
        try:
            float(given.value)
        except ValueError:
            raise UsageError(f"{given.where} is {given.value!r}: give a number") from None


def _nodes(given: Said | None) -> tuple[int, int]:
    """The fewest and the most."""
    if given is None:
        return 1, 1
    low, colon, high = given.value.partition(":")
    try:
        fewest, most = int(low), int(high if colon else low)
    except ValueError:
        fewest = most = 0
    if not 0 < fewest <= most:
        raise UsageError(f"{given.where} is {given.value!r}: give a number of nodes, or MIN:MAX such as 1:4")
    return fewest, most


def _sizes(
    heard: Mapping[str, Said], flags: argparse.Namespace, environ: Mapping[str, str], described: bool
) -> dict[str, Said]:
    """`min` and `max` in workers, where nodes were counted, or an endpoint is given: then --nnodes is 1 unless it is said."""
    nodes = heard.get("nnodes")
    own = [_said_by_own_words(name, flags, environ) for name in ("min", "max")]
    by_flag = nodes is not None and nodes.where == flag_of("nnodes")
    if flags.min_np is not None or flags.max_np is not None or (flags.num_proc is not None and not by_flag):
        return {}  # horovodrun's flags say it
    if any(word is not None and (word.where.startswith("-") or not by_flag) for word in own):
        return {}
    if nodes is None and not described:
        return {}
    workers = _said_by_own_words("nproc_per_node", flags, environ) or heard.get("nproc_per_node")
    where = nodes.where if nodes is not None else flag_of("nnodes")
    words = {} if workers is not None else {"nproc_per_node": Said("1", where)}
    count = 1 if workers is None else workers_per_node(workers.value, workers.where, environ)
    fewest, most = _nodes(nodes)
    return {**words, "min": Said(str(fewest * count), where), "max": Said(str(most * count), where)}
