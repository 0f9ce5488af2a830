"""The errors of this package: one tree, so that callers can catch all of them or one kind."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(ElasticError):
    """The caller asked for something that cannot be done; the message names the way out."""


class RendezvousError(ElasticError):
    """The rendezvous server could not be reached, or refused."""


class AuthorizationError(RendezvousError):
    """The rendezvous server does not know this token, or wants one."""


class RingError(ElasticError):
    """The ring broke: a peer is gone, or the generation was ended. Handled inside a step; never a user's fault."""


class StaleGroupError(RingError):
    """A process group that belongs to an earlier generation was used."""


class StateMismatchError(ElasticError):
    """This worker's model or optimizer does not have the shape of the job's; only this worker is rejected."""


class CheckpointError(ElasticError):
    """A checkpoint could not be written or no intact one could be read."""
