"""torchrun's rendezvous, c10d or static, as an endpoint: HOST:PORT, and whether this agent is the one that serves there."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UsageError
from ...rendezvous.host_port import host_port
from .words import Said, count, is_on

_STATIC_PORT = "29500"
_CONF_WORDS = {"join_timeout": "min_timeout", "read_timeout": "rendezvous_timeout", "timeout": "rendezvous_timeout"}
_CONF_IGNORED = (
    "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "use_libuv",
)  # fmt: skip
_CONF_OTHERS = ("is_host", "rank", "store_type")


def where_to_meet(heard: Mapping[str, Said], most_nodes: int) -> dict[str, Said]:
    """The words for it; `heard` is by torchrun's names. UsageError for what contradicts itself."""
    conf = _conf(heard.get("rdzv_conf"))
    words = {_CONF_WORDS[key]: value for key, value in conf.items() if key in _CONF_WORDS}
    is_static = "rdzv_backend" not in heard or heard["rdzv_backend"].value == "static"
    endpoint = heard.get("rdzv_endpoint")
    rank = heard.get("node_rank", conf.get("rank"))
    if is_static and rank is not None:
        count(rank, least=0)
        words["node"] = rank
    if endpoint is None and is_static:
        endpoint = _master(heard)
    if endpoint is None:
        if most_nodes == 1:
            return words | ({"one_node": heard["nnodes"]} if "nnodes" in heard else {})
        return words | {"several_nodes": heard["nnodes"]}
    words["endpoint"] = endpoint
    if "is_host" in conf:
        words["serves_endpoint"] = conf["is_host"]
    elif is_static and (rank is not None or most_nodes == 1):
        words["serves_endpoint"] = (
            Said("1", endpoint.where) if rank is None else Said(str(int(int(rank.value) == 0)), rank.where)
        )
    return words


def _master(heard: Mapping[str, Said]) -> Said | None:
    address, port = heard.get("master_addr"), heard.get("master_port")
    if address is None and port is None:
        return None
    host = address.value if address is not None else "127.0.0.1"
    named = address or port
    assert named is not None
    return Said(host_port(host, port.value if port is not None else _STATIC_PORT), named.where)


def _conf(given: Said | None) -> dict[str, Said]:
    if given is None:
        return {}
    conf = {}
    for pair in filter(None, given.value.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{given.where} is {given.value!r}: give KEY=VALUE, with commas between them")
        if key not in (*_CONF_WORDS, *_CONF_IGNORED, *_CONF_OTHERS):
            known = ", ".join(sorted((*_CONF_WORDS, *_CONF_IGNORED, *_CONF_OTHERS)))
            raise UsageError(f"{given.where} has {key!r}, which is not known: there are {known}")
        conf[key] = Said(value, f"{given.where} {key}")
    if "is_host" in conf:
        try:
            is_on(conf["is_host"].value)
        except UsageError as error:
            raise UsageError(f"{conf['is_host'].where} {error}") from None
    if "store_type" in conf and conf["store_type"].value != "tcp":
        raise UsageError(
            f"{conf['store_type'].where} is {conf['store_type'].value!r}: agents meet over the network; leave it out, and"
            " give --rdzv-endpoint HOST:PORT"
        )
    return conf
