"""HOST:PORT as it is written in URLs, and in whatever else is told to others."""

from __future__ import annotations


def host_port(host: str, port: int | str) -> str:
    """With brackets around an IPv6 address, whether `host` has them already or not."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if bare.count(":") > 1 else f"{host}:{port}"
