"""The errors that scripts catch by these names, and those that a mistake of the script leads to."""

from __future__ import annotations

from ...errors import ElasticError, UsageError


class HorovodInternalError(ElasticError, RuntimeError):
    """A collective failed, since the ring broke. `elastic.run` goes back to the last commit and on with those that are left."""


class HostsUpdatedInterrupt(ElasticError, RuntimeError):
    """Workers are to come or go, and all members have agreed to take that in here. Nothing is rolled back.

    `skip_sync` is always False: the state is made the same on all members after every change.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("workers are to come or go")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised: nothing here is compiled for one release of a framework."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {installed_version} is installed, where {version} was expected")
        self.name = name
        self.version = version
        self.installed_version = installed_version


class MismatchError(UsageError, ValueError):
    """Members called one collective with different arguments: a mistake of the script, which no restart cures."""


class NotOfferedError(UsageError, NotImplementedError):
    """A part of Horovod that there is not here; the message says why, and what to do."""
