"""Where an etcd is and how to be let in, from the text that a user gives."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from ....errors import UsageError

PASSWORD_VARIABLE = "ELASTIC_ETCD_PASSWORD"
DEFAULT_PREFIX = "/elastic-launch/"
EXAMPLE = "etcd://HOST:2379[,HOST:2379...][/PREFIX], or etcds:// for TLS with [?ca=FILE&cert=FILE&key=FILE]"

_FILES = ("ca", "cert", "key")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")


@dataclass(frozen=True)
class EtcdAddress:
    """One etcd cluster. `endpoints` are HOST:PORT, tried in their order; an IPv6 address is in brackets.

    `prefix` begins the name of every key of ours and ends with a slash. With `tls` and no `ca`, the system's authorities
    are trusted; `ca`, `cert` and `key` are names of PEM files.
    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    prefix: str = DEFAULT_PREFIX

    @classmethod
    def parse(cls, text: str) -> EtcdAddress:
        """`etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][/PREFIX]`, or `etcds://...[?ca=FILE&cert=FILE&key=FILE]`.

        Special characters of user and password are percent-encoded. Without a password it is taken from the environment
        variable ELASTIC_ETCD_PASSWORD, which other users of the host cannot see. UsageError for anything else.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in ("etcd", "etcds"):
            raise _wrong(text, "does not begin with etcd:// or etcds://")
        try:
            parts = urlsplit("//" + rest)  # urlsplit judges the brackets of IPv6
        except ValueError as error:
            raise _wrong(text, str(error)) from None
        if parts.fragment or "#" in text:
            raise _wrong(text, "'#' has no meaning here; inside of a password write %23")
        login, at, hosts = parts.netloc.rpartition("@")
        if "@" in login:
            raise _wrong(text, "has more than one '@'; inside of a password write %40")
        user, password = _login(text, login) if at else ("", "")
        endpoints = tuple(_endpoint(text, host) for host in hosts.split(","))
        if len(set(endpoints)) < len(endpoints):
            raise _wrong(text, "names an endpoint twice")
        files = _files(text, parts.query, tls=scheme == "etcds")
        prefix = parts.path.strip("/")
        if not prefix.isascii() or not prefix.isprintable() or " " in prefix:
            raise _wrong(text, f"the prefix {prefix!r} is more than printable ASCII")
        return cls(
            endpoints,
            user=user,
            password=password,
            tls=scheme == "etcds",
            prefix=f"/{prefix}/" if prefix else DEFAULT_PREFIX,
            **files,
        )


def _login(text: str, login: str) -> tuple[str, str]:
    user, _, password = login.partition(":")
    if not user:
        raise _wrong(text, "has no user before the '@'")
    password = unquote(password) or os.environ.get(PASSWORD_VARIABLE, "")
    if not password:
        raise _wrong(text, f"has no password for user {unquote(user)!r}: put it into {PASSWORD_VARIABLE}")
    return unquote(user), password


def _endpoint(text: str, given: str) -> str:
    host, colon, port = given.rpartition(":")
    if not colon or not host or given.endswith("]"):
        raise _wrong(text, f"{given!r} is not HOST:PORT (an etcd's usual port is 2379)")
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise _wrong(text, f"{port!r} is not a port: give a number from 1 to 65535")
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise _wrong(text, f"{host!r} is not an IPv6 address") from None
    elif ":" in host:
        raise _wrong(text, f"an IPv6 address stands in brackets: [{host}]:{port}")
    elif not _NAME.fullmatch(host):
        raise _wrong(text, f"{host!r} is not the name of a host")
    return f"{host}:{int(port)}"


def _files(text: str, query: str, *, tls: bool) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _wrong(text, f"{query!r} is not NAME=FILE[&NAME=FILE...]") from None
    files = dict(pairs)
    unknown = [name for name in files if name not in _FILES]
    if unknown:
        raise _wrong(text, f"{unknown[0]!r} is not known: there are ca, cert and key")
    if len(files) < len(pairs):
        raise _wrong(text, "names a file twice")
    if files and not tls:
        raise _wrong(text, "certificates are for TLS: begin with etcds://")
    if not all(files.values()):
        raise _wrong(text, "a name of a file is empty")
    if ("cert" in files) != ("key" in files):
        raise _wrong(text, "a client's certificate (cert=FILE) and its key (key=FILE) are given together")
    return files


def _wrong(text: str, why: str) -> UsageError:
    without_password = re.sub(r"(//[^/@:]*):.*@", r"\1:...@", text)
    return UsageError(f"{without_password!r} is not the address of an etcd: {why}. Give {EXAMPLE}")
