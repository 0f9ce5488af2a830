"""The environment of a process of the real Horovod's: horovodrun's, as `gloo_run.py` of 0.28.1 makes it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..address import interface_with
from .places import Place

# Horovod waits for all of a ring's members, and for each message, as long as that. A worker's loss does not take that long
# here: its peers' sockets are shut. It is for what nobody notices, such as a host that is silent.
_GLOO_TIMEOUT = "30"  # seconds

_OTHERS = (
    "HOROVOD_ELASTIC", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)  # fmt: skip


def host_name(host: str, agent: str) -> str:
    """One of each agent: two agents on one host are two hosts to Horovod. It comes to stand in paths."""
    return f"{re.sub(r'[^A-Za-z0-9.-]', '-', host)[:200]}-{agent[:8]}"


def process_environment(
    environ: Mapping[str, str], address: str, hostname: str, slot: int, endpoint: Mapping[str, str]
) -> dict[str, str]:
    """`environ` is the agent's own. The place comes when the process asks for it, each time that it calls `hvd.init()`."""
    made = {"HOROVOD_ELASTIC": "1", "HOROVOD_LOCAL_RANK": str(slot), "PYTHONUNBUFFERED": "1"}
    return {**_led_by(environ, address, hostname, endpoint), **made}


def script_environment(
    environ: Mapping[str, str], address: str, hostname: str, place: Place, endpoint: Mapping[str, str]
) -> dict[str, str]:
    """Of a process that has one place for all of its life."""
    return {**_led_by(environ, address, hostname, endpoint), **place.variables()}


def _led_by(environ: Mapping[str, str], address: str, hostname: str, endpoint: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in environ.items() if name not in _OTHERS}
    interface = interface_with(address)
    on_its_network = {"HOROVOD_GLOO_IFACE": interface} if interface else {}
    defaults = {"HOROVOD_GLOO_TIMEOUT_SECONDS": _GLOO_TIMEOUT, **on_its_network}
    made = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_HOSTNAME": hostname}
    return {**defaults, **inherited, **made, **endpoint}
