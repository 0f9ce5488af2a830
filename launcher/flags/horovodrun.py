"""The flags of horovodrun 0.28.1: what they mean here. docs/horovodrun-flags.md has the table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import UsageError
from .horovod_config import NEVER, Config, read_config
from .horovod_only import FLAGS, HorovodOnly
from .horovod_variables import variable_of
from .words import Said, count

# Flag, its place in the namespace, and the own word that means the same.
_SAME = (
    ("--min-np", "min_np", "min"),
    ("--max-np", "max_np", "max"),
    ("--start-timeout", "start_timeout", "rendezvous_timeout"),
    ("--elastic-timeout", "elastic_timeout", "min_timeout"),
    ("--network-interfaces", "network_interfaces", "network_interface"),
    ("--output-filename", "output_filename", "log_dir"),
    ("-H", "hosts", "hosts"),
    ("--hostfile", "hostfile", "hostfile"),
    ("--host-discovery-script", "host_discovery_script", "host_discovery_script"),
    ("--slots-per-host", "slots_per_host", "slots_per_host"),
    ("-p", "ssh_port", "ssh_port"),
    ("-i", "ssh_identity_file", "ssh_identity_file"),
    ("--remote-shell", "remote_shell", "remote_shell"),
    ("--reset-limit", "reset_limit", "reset_limit"),
    ("--log-level", "log_level", "log_level"),
)
_VARIABLES = (
    ("HOROVOD_START_TIMEOUT", "rendezvous_timeout"),
    ("HOROVOD_ELASTIC_TIMEOUT", "min_timeout"),
    ("HOROVOD_LOG_LEVEL", "log_level"),
)
_HOSTS_VARIABLES = ("ELASTIC_HOSTS", "ELASTIC_HOSTFILE")
EXAMPLES = ("elastic-launch -np 4 --min-np 2 --max-np 8 -H a:4,b:4 python train.py  # horovodrun's",)
NAMES = ("log_level",)
"""Those that are not about hosts and have a variable of this launcher's own; `hosts.asked.NAMES` has the others."""


class _CheckBuild(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from ..build_check import build_check

        print(build_check())
        parser.exit()


class _Given(NamedTuple):
    """A flag that has a meaning for the real Horovod only, or for nobody here."""

    flag: str
    value: str
    why: str


class _HorovodOnly(argparse.Action):
    """Refused at once, or remembered for a warning, or for the real Horovod."""

    def __init__(self, only: HorovodOnly, **rest: Any) -> None:
        super().__init__(**rest)
        self._only = only

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if self._only.answer == "refusal":
            parser.error(f"{option_string}: {self._only.why}")
        if self._only.answer == "warning":
            value = values if isinstance(values, str) else ""
            given = [*(getattr(namespace, self.dest) or []), _Given(str(option_string), value, self._only.why)]
            setattr(namespace, self.dest, given)


def add_flags(parser: argparse.ArgumentParser) -> list[str]:
    """Values stay text. --network-interface, --verbose and --version are own flags. Returns the long names of the others."""
    before = set(parser._option_string_actions)
    job = parser.add_argument_group("horovodrun: the job")
    job.add_argument(
        "-np",
        "--num-proc",
        metavar="N",
        help="workers in all: exactly N without --min-np or --max-np; the workers of this host where it meets no others,"
        " shared by the tasks of a Slurm step (default: --min and --max)",
    )
    job.add_argument("--min-np", "--min-num-proc", dest="min_np", metavar="N", help="as --min (default: -np)")
    job.add_argument("--max-np", "--max-num-proc", dest="max_np", metavar="N", help="as --max (default: the slots)")
    job.add_argument("--start-timeout", metavar="S", help="as --rendezvous-timeout; also for reaching the hosts")
    job.add_argument("--elastic-timeout", metavar="S", help="as --min-timeout")
    job.add_argument("--network-interfaces", metavar="I,I", help="as --network-interface")
    job.add_argument("--output-filename", metavar="DIR", help="as --log-dir: on each host, its own workers' output")
    job.add_argument(
        "--config-file", metavar="F", help="YAML file in horovodrun's schema; flags come before it (default: none)"
    )
    job.add_argument("--log-level", metavar="LEVEL", help="TRACE, DEBUG, INFO, WARNING (default), ERROR or FATAL")
    job.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        *("--log-with-timestamp", "--no-log-hide-timestamp"),
        dest="with_timestamp",
        action="store_true",
        help="as --prefix time",
    )
    job.add_argument("-cb", "--check-build", action=_CheckBuild, nargs=0, help="show what is available here, and exit")
    hosts = parser.add_argument_group("hosts that this launcher starts agents on")
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="the hosts, and how many workers each has room for (default: none)",
    )
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="F", help="file with one `HOST slots=N` or `HOST:N` a line (default: none)"
    )
    hosts.add_argument(
        "--host-discovery-script",
        metavar="CMD",
        help="command that prints one HOST or HOST:SLOTS a line; it is asked every second (default: none)",
    )
    hosts.add_argument("--slots-per-host", metavar="N", help="slots of hosts listed without a number (default 1)")
    hosts.add_argument("-p", "--ssh-port", metavar="PORT", help="port of their ssh servers (default: ssh's own)")
    hosts.add_argument("-i", "--ssh-identity-file", metavar="F", help="private key for ssh (default: ssh's own)")
    hosts.add_argument(
        "--remote-shell",
        metavar="CMD",
        help="in place of ssh, run as CMD HOST COMMAND (default: the program of OMPI_MCA_plm_rsh_agent, else ssh)",
    )
    hosts.add_argument(
        "--blacklist-cooldown-range",
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds after which a host that failed is used again, longer each time (default: never)",
    )
    hosts.add_argument(
        "--reset-limit",
        metavar="N",
        help="end the job when its workers have changed more often than that (default: never)",
    )
    for only in FLAGS:
        parser.add_argument(
            *only.flags,
            dest="horovods_own",
            action=_HorovodOnly,
            only=only,
            nargs=None if only.takes_value else 0,
            help=argparse.SUPPRESS,
        )
    parser.add_argument("--no-stall-check", action="store_const", const="1", help=argparse.SUPPRESS)
    parser.add_argument("--stall-check-shutdown-time-seconds", dest="stall_shutdown", help=argparse.SUPPRESS)
    return [name for name in parser._option_string_actions if name not in before and name.startswith("--")]


def said(flags: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Said]:
    """In this launcher's own words. UsageError for what contradicts itself or cannot be read."""
    config = read_config(flags.config_file) if flags.config_file else Config()
    words = {word: Said(environ[name], name) for name, word in _VARIABLES if environ.get(name)}
    words.update(config.words)
    words.update(_sizes(flags, environ))
    for flag, place, word in _SAME:
        value = getattr(flags, place)
        if value is not None:
            words[word] = Said(value, flag)
    if flags.blacklist_cooldown_range is not None:
        words["blacklist_cooldown_range"] = Said(" ".join(flags.blacklist_cooldown_range), "--blacklist-cooldown-range")
    if flags.with_timestamp:
        words["prefix"] = Said("time", "--prefix-output-with-timestamp")
    if flags.no_stall_check:
        words["hang_timeout"] = Said(str(NEVER), "--no-stall-check")
    if flags.stall_shutdown not in (None, "0"):
        words["hang_timeout"] = Said(flags.stall_shutdown, "--stall-check-shutdown-time-seconds")
    return words


def without_effect(flags: argparse.Namespace, real_horovod: bool = False) -> list[str]:
    """A line for each flag, or part of the configuration file, that was given and means nothing here."""
    config = read_config(flags.config_file) if flags.config_file else Config()
    given: list[_Given] = flags.horovods_own or []
    lost = [each for each in given if not (real_horovod and variable_of(each.flag, each.value))]
    return [*(f"{each.flag} has no effect: {each.why}" for each in lost), *config.without_effect]


def horovods_variables(flags: argparse.Namespace) -> dict[str, str]:
    """What the flags say to the real Horovod. UsageError for what is no number."""
    given: list[_Given] = flags.horovods_own or []
    return dict(found for each in given if (found := variable_of(each.flag, each.value)) is not None)


def _sizes(flags: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Said]:
    """What -np and --slots-per-host say of the job's size and of this host's part."""
    words: dict[str, Said] = {}
    asks_a_script = bool(flags.host_discovery_script or environ.get("ELASTIC_HOST_DISCOVERY_SCRIPT"))
    names_hosts = asks_a_script or any((flags.hosts, flags.hostfile)) or any(map(environ.get, _HOSTS_VARIABLES))
    if flags.slots_per_host is not None and not names_hosts:
        words["nproc_per_node"] = Said(flags.slots_per_host, "--slots-per-host")
    if flags.num_proc is None:
        return words
    given = Said(flags.num_proc, "-np")
    whole = count(given)
    if flags.min_np is not None and count(Said(flags.min_np, "--min-np")) > whole:
        raise UsageError(f"--min-np {flags.min_np} is above -np {whole}: raise -np or lower --min-np")
    if flags.max_np is not None and count(Said(flags.max_np, "--max-np")) < whole:
        raise UsageError(f"-np {whole} is above --max-np {flags.max_np}: raise --max-np or lower -np")
    words["num_proc"] = words["min"] = given
    if not (names_hosts and (asks_a_script or flags.min_np is not None)):
        words["max"] = given
    return words
