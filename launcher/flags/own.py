"""The flags of `elastic-launch` itself, with their help. What the values mean together is checked in `asking`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from . import output_words

NAMES = (
    "min", "max", "nproc_per_node", "job", "max_restarts", "min_timeout", "hang_timeout", "shutdown_timeout",
    "rendezvous", "endpoint", "standalone", "port", "rendezvous_timeout", "advertise_address", "network_interface",
    "on_change", "horovod", "preload", "backend", "requeue", "token_file", "tls_ca", "tls_cert", "tls_key", "watch_pods",
    *output_words.NAMES,
)  # fmt: skip

EXAMPLES = (
    "elastic-launch --min 1 --max 4 train.py --epochs 10",
    "elastic-launch --rendezvous http://head:29600 --job digits --min 2 --max 8 -m my.training",
    "elastic-launch --endpoint head:29400 --min 2 --max 8 train.py  # the same on every host",
)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("elastic-launch")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"elastic-launch {found}")
        parser.exit()


class _Joined(argparse.Action):
    """Given several times, it means all of them, with commas between."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All values stay text, None where the flag is missing: variables and defaults come in later."""
    job = parser.add_argument_group("job")
    job.add_argument(
        "--min",
        metavar="N",
        help="fewest workers that train; below it they wait (default 1; where --nproc-per-node alone is given, as many)",
    )
    job.add_argument("--max", metavar="N", help="most workers (default: --nproc-per-node, else the GPUs here, else 1)")
    job.add_argument(
        "--nproc-per-node",
        metavar="N",
        help="workers of this agent: a number, auto (GPUs, else CPUs), gpu or cpu (default: --max if this agent serves"
        " the job, else its GPUs, or 1)",
    )
    job.add_argument(
        "--job", metavar="NAME", help="name of the job (default: default; under Slurm from the job's number)"
    )
    job.add_argument("--max-restarts", metavar="N", help="crashes of workers that the whole job survives (default 3)")
    job.add_argument("--min-timeout", metavar="S", help="seconds below --min until the job fails (default 600)")
    job.add_argument(
        "--hang-timeout", metavar="S", help="seconds without progress until a worker counts as hung (default 300)"
    )
    job.add_argument(
        "--shutdown-timeout",
        metavar="S",
        help="seconds that workers have to end in order before they are killed (default 30)",
    )
    job.add_argument(
        "--requeue",
        metavar="WHEN",
        help="under Slurm, put the drained job back into the queue: preempted, if Slurm would have done so; always, after"
        " signals such as USR1 too; never (default preempted)",
    )
    job.add_argument(
        "--on-change",
        metavar="HOW",
        help="when workers come or go: in-process, for scripts that call elastic_launch.join(); restart, for scripts that"
        " do not, whose processes start again; auto looks which one it is (default auto)",
    )
    job.add_argument(
        "--horovod",
        action="store_const",
        const="1",
        help="scripts that import horovod get its API on the rings of this package, whether or not Horovod is installed"
        " (default: the real Horovod, where it is installed)",
    )
    job.add_argument(
        "--backend",
        metavar="RING",
        help="what carries CPU tensors between workers: gloo, or tcp, a ring over sockets of our own; the same for all agents"
        " of the job (default gloo)",
    )
    job.add_argument(
        "--preload",
        metavar="MODULES",
        help="modules, with commas between them, that are imported once, ahead of all starts of scripts (default: torch,"
        " if the script imports it)",
    )
    meeting = parser.add_argument_group("where the agents meet")
    meeting.add_argument(
        "--rendezvous",
        metavar="URL",
        help="http[s]://HOST:PORT of the job's server; several with commas between them (default: none, this agent serves)",
    )
    meeting.add_argument(
        "--endpoint",
        metavar="HOST[:PORT]",
        help="the same on all hosts: the agent on this one serves the job there, the others join it (default: none; port 29400)",
    )
    meeting.add_argument("--standalone", action="store_const", const="1", help="serve the job alone, also in a pod")
    meeting.add_argument(
        "--port",
        metavar="PORT",
        help="port of the server in this agent (default: any free one; under Slurm one from the job's number)",
    )
    meeting.add_argument(
        "--rendezvous-timeout", metavar="S", help="seconds to look for the server at the start (default 60)"
    )
    meeting.add_argument(
        "--advertise-address",
        metavar="A",
        help="this host's address, for everything that listens (default: the one on the way to the server)",
    )
    meeting.add_argument(
        "--network-interface",
        metavar="I",
        action=_Joined,
        help="take the address of this interface, such as eth0; of several, with commas, the first that there is (default:"
        " that of the route)",
    )
    meeting.add_argument(
        "--token-file", metavar="F", help="file with the server's token, read again when it changes (default: none)"
    )
    meeting.add_argument("--tls-ca", metavar="F", help="certificates to trust for https (default: the system's)")
    meeting.add_argument(
        "--tls-cert", metavar="F", help="this agent's certificate, for a server that wants one (default: none)"
    )
    meeting.add_argument("--tls-key", metavar="F", help="its private key (default: in the file of --tls-cert)")
    meeting.add_argument(
        "--watch-pods",
        metavar="LABEL=VALUE",
        help="in Kubernetes: watch the pods with this label, and tell the server which are being deleted, or are lost"
        " (default: none)",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--log-dir",
        metavar="DIR",
        help="also write each worker's output to DIR/JOB/HOST/worker-SLOT-ID/ (default: no files)",
    )
    output.add_argument(
        "--log-max-size", metavar="SIZE", help="a log longer than this is begun anew: 500000, 100M, 0 (default 256M)"
    )
    output.add_argument("--log-files", metavar="N", help="files of each log that are kept (default 8)")
    output.add_argument(
        "--prefix", metavar="STYLE", help="in front of the workers' lines: full, rank, none or time (default full)"
    )
    output.add_argument(
        "--quiet", action="store_const", const="1", help="no summary at the end (default: about ten lines)"
    )
    output.add_argument(
        "--verbose", action="store_const", const="1", help="show each message between server, agent and workers"
    )
    output.add_argument(
        "--check", action="store_true", help="say what this machine has, what would go wrong and what to do; no script"
    )
    output.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and exit")


def add_script(parser: argparse.ArgumentParser) -> None:
    """What is run: everything behind it belongs to it."""
    script = parser.add_argument_group("script")
    script.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m")
    name = script.add_argument("script", help="Python script, or module with -m")
    rest = script.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    name.required = rest.required = False  # --check does without; `asking` asks for it otherwise
