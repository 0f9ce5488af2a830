"""What can go wrong between this package and a cluster, chained from the official client's errors."""

from __future__ import annotations

from ..errors import ElasticError


class ClusterError(ElasticError):
    """The API server refused, or did not answer."""


class Unreachable(ClusterError):
    """No answer, or none that can be understood; whether the request took effect is not known."""


class NotFound(ClusterError):
    """There is no such object."""


class Conflict(ClusterError):
    """The object exists already, or has changed since it was read."""


class Expired(ClusterError):
    """What was asked about lies too far back (410): list again."""


class Refused(ClusterError):
    """Any other refusal, with the server's own words."""


class NotStarted(Refused):
    """The container has not been started, so it has no log."""
