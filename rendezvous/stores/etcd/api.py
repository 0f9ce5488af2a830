"""etcd's v3 protocol: the one place that imports gRPC and the generated messages, which most processes never need.

The messages and stubs are those of the package `aetcd`. Its client is not used: it knows one endpoint and no TLS.
"""

from __future__ import annotations

import os

from ....errors import UsageError

# Unless told otherwise, gRPC looks after its threads at every fork of this process, such as that of a worker, complains in
# the log when it cannot, and disturbs the child. Read at the import, so what is inherited by children stays as it was.
_FORKS = "GRPC_ENABLE_FORK_SUPPORT"
_given = os.environ.get(_FORKS)
os.environ.setdefault(_FORKS, "0")
try:
    import grpc
    import grpc.aio
    from aetcd import rpc
except ImportError as error:
    raise UsageError(
        f"the etcd store needs packages that are not installed here ({error}): pip install 'elastic-launch[etcd]'"
    ) from error
finally:
    if _given is None:
        del os.environ[_FORKS]

__all__ = ["grpc", "rpc"]
