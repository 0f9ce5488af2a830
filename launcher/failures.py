"""How an agent ends when its own life fails: each kind of error has an exit code of its own."""

from __future__ import annotations

import traceback

from ..errors import AuthorizationError, ElasticError, RendezvousError
from . import exits
from .ending import Ending
from .serving import PortError


def ending_of(error: Exception) -> Ending:
    if isinstance(error, PortError):
        return Ending(exits.USAGE, str(error))
    if isinstance(error, AuthorizationError):
        return Ending(exits.REFUSED, str(error))
    if isinstance(error, RendezvousError):
        return Ending(exits.UNREACHABLE, str(error))
    if isinstance(error, (ElasticError, OSError)):
        return Ending(exits.USAGE, str(error))
    return Ending(exits.BUG, "the agent has failed", "".join(traceback.format_exception(error)))
