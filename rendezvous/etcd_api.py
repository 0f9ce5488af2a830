"""etcd's v3 protocol: the one place that imports gRPC and the generated messages, which most processes never need.

The messages and stubs are those of the package `aetcd`. Its client is not used: it knows one endpoint and no TLS.
"""

from __future__ import annotations

from ..errors import UsageError

try:
    import grpc
    import grpc.aio
    from aetcd import rpc
except ImportError as error:
    raise UsageError(
        f"the etcd store needs packages that are not installed here ({error}): pip install 'elastic-launch[etcd]'"
    ) from error

__all__ = ["grpc", "rpc"]
