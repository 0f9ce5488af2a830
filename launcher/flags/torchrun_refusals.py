"""What torchrun takes and this launcher cannot: each refused by name, with what to use."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UsageError
from .words import Said

_START_METHODS = ("spawn", "fork", "forkserver")
_EVENT_LOGS = ("null", "console")
_NUMA = ("node", "socket", "exclusive", "core-complex")


def check(heard: Mapping[str, Said], has_server: bool) -> None:
    """UsageError for the first one. With a server of --rendezvous, torchrun's rendezvous is not looked at."""
    if "logs_specs" in heard:
        raise UsageError(
            f"{heard['logs_specs'].where} names a Python class of torchrun's, which this launcher does not load. Use"
            " --log-dir, --redirects, --tee and the filters"
        )
    _check_choice(heard.get("event_log_handler"), _EVENT_LOGS, "handlers are registered in torchrun's own process")
    _check_choice(heard.get("start_method"), _START_METHODS)
    _check_choice(heard.get("numa_binding"), _NUMA)
    if not has_server:
        _check_backend(heard)


def _check_choice(given: Said | None, choices: tuple[str, ...], why: str = "") -> None:
    if given is not None and given.value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UsageError(f"{given.where} is {given.value!r}: give {known}" + (f" ({why})" if why else ""))


def _check_backend(heard: Mapping[str, Said]) -> None:
    backend = heard.get("rdzv_backend")
    if backend is None or backend.value in ("static", "c10d"):
        return
    if backend.value in ("etcd", "etcd-v2"):
        place = heard["rdzv_endpoint"].value if "rdzv_endpoint" in heard else "HOST:2379"
        raise UsageError(
            f"{backend.where} is {backend.value!r}: agents do not speak to etcd, their server does. Run `elastic-rendezvous"
            f" --store etcd://{place}` on one host or more (etcd 3), and give --rendezvous http://THAT-HOST:29600 instead"
        )
    raise UsageError(
        f"{backend.where} is {backend.value!r}: give c10d or static, or a server of this project's with --rendezvous"
        " http://HOST:PORT (torchrun's plug-ins are not loaded)"
    )
