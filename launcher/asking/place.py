"""Where the agents meet, and at which address this one is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import UsageError
from ..access import Access
from ..address import AddressError, address_of_interface, checked_address
from ..batch.nodes import place_of
from ..batch.scheduler import company
from ..batch.step import Step, find_step
from ..endpoint import Endpoint
from ..flags import slurm
from .asked import Asked


@dataclass(frozen=True)
class Place:
    """`urls` and `endpoint` as in `Options`; `step` is the batch system's, whose agents meet at one of them by themselves."""

    urls: tuple[str, ...] = ()
    endpoint: Endpoint | None = None
    step: Step | None = None

    @property
    def serves(self) -> bool:
        return not self.urls and self.endpoint is None


def find_place(asked: Asked) -> Place:
    given, rendezvous = asked.said("endpoint"), asked.said("rendezvous")
    if given is None or asked.is_on("standalone"):
        return Place(find_urls(asked))
    if given.where == slurm.WHERE:
        step = find_step(asked.environ) if rendezvous is None else None
        return Place(find_urls(asked)) if step is None else Place(endpoint=_endpoint_of(step, asked), step=step)
    if rendezvous is not None:
        if given.where.startswith("-") and rendezvous.where.startswith("-"):
            asked.fail(f"{rendezvous.where} and {given.where} both say where the agents meet: leave one of them out")
        if not given.where.startswith("-"):
            return Place(find_urls(asked))
    if asked.said("max") is None:
        asked.fail(f"{given.where} is for the agents of several hosts: say how many workers there may be, with --max")
    serves = None if asked.said("serves_endpoint") is None else asked.is_on("serves_endpoint")
    return Place(endpoint=asked.understood(lambda: Endpoint.parse(given.value, serves), given.where))


def _endpoint_of(step: Step, asked: Asked) -> Endpoint:
    host = "127.0.0.1" if len(step.nodes) == 1 else place_of(step.nodes[0])
    return Endpoint(host, find_port(asked, serves=True) or step.port, step.serves)


def find_urls(asked: Asked) -> tuple[str, ...]:
    """Empty if this agent is to serve the job itself, which must not happen by accident."""
    given = asked.said("rendezvous")
    alone = asked.is_on("standalone")
    if given is not None and alone:
        asked.fail(f"{given.where} and --standalone contradict each other: leave one of them out")
    if given is not None:
        return tuple(_checked_url(asked, url.strip(), given.where) for url in given.value.split(","))
    several = asked.said("several_nodes")
    if several is not None and not alone:
        asked.fail(
            f"{several.where} is {several.value!r}, but nothing says where the nodes meet: give --rdzv-endpoint HOST:PORT"
            " with the name of one of them, the same on all (localhost:29400 for agents of one machine)"
        )
    beside = "" if alone else company(asked.environ)
    if beside:
        asked.fail(
            f"{beside}, and no --rendezvous was given: each would train on its own. Start elastic-rendezvous, and"
            " give its --rendezvous http://HOST:PORT to all, or --standalone if that is what you want"
            + (". Put srun in front, and they find each other by themselves" if "srun" in beside else "")
        )
    if is_a_pod(asked) and not alone and asked.said("one_node") is None:
        asked.fail(
            "this is a pod, and no --rendezvous was given: it would train on its own, beside its peers. Give"
            " --rendezvous http://SERVICE:PORT (or ELASTIC_RENDEZVOUS), or --standalone if that is what you want"
        )
    return ()


def is_a_pod(asked: Asked) -> bool:
    return bool(asked.environ.get("KUBERNETES_SERVICE_HOST"))


def _checked_url(asked: Asked, url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname and parts.port) and parts.path in ("", "/")
    except ValueError:
        good = False
    if not good:
        asked.fail(f"{where} is {url!r}: give it as http://HOST:PORT (an IPv6 address in brackets)")
    return url.rstrip("/")


def find_port(asked: Asked, serves: bool) -> int:
    given = asked.said("port")
    port = asked.count("port", least=0, default=0)
    if given is not None and port > 65535:
        asked.fail(f"{given.where} is {port}: give a port from 1 to 65535, or 0 for any free one")
    if given is not None and port and not serves:
        asked.fail(
            f"{given.where} is for the server in this agent, but another place was given to meet at: leave one out"
        )
    return port


def find_address(asked: Asked, serves: bool) -> str | None:
    """None for that of the route to the server."""
    advertised, interface = asked.said("advertise_address"), asked.said("network_interface")
    if advertised is not None and interface is not None:
        if advertised.where.startswith("--") and interface.where.startswith("--"):
            asked.fail("--advertise-address and --network-interface say the same thing: leave one of them out")
        if interface.where.startswith("--"):
            advertised = None
    try:
        if advertised is not None:
            return checked_address(advertised.value)
        if interface is not None:
            return address_of_interface(interface.value)
    except AddressError as error:
        asked.fail(str(error))
    return "127.0.0.1" if serves else None


def find_access(asked: Asked, urls: Sequence[str]) -> Access:
    given = {name: asked.said(name) for name in ("token_file", "tls_ca", "tls_cert", "tls_key")}
    access = Access(**{name: Path(text.value).absolute() for name, text in given.items() if text is not None})
    tls_flags = [text.where for name, text in given.items() if text and name != "token_file" and text.where[:2] == "--"]
    try:
        access.check(urls, tls_flags)
    except UsageError as error:
        asked.fail(str(error))
    return access
