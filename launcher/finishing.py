"""Hearing that all workers of a generation have finished, for workers whose processes do not speak the protocol themselves."""

from __future__ import annotations

from ..errors import RingError
from ..rendezvous.meeting.client import GatherTimeout, MeetingClient
from .threads import in_a_thread

_ASK_AGAIN = 3600.0  # seconds


async def all_have_finished(client: MeetingClient, place: int, size: int, reason: str) -> bool:
    """Say that the worker at `place` of `size` has, and wait for the others; one that fails first needs this one again.

    False if whoever served the meeting point is gone: another generation follows. `reason` is why the wait is ended, where
    it is cancelled.
    """
    while True:
        try:
            await in_a_thread(
                lambda: client.gather("finished", place, size, b"", _ASK_AGAIN),
                "finishing",
                stop=lambda: client.abort(reason),
            )
        except GatherTimeout:
            continue
        except RingError:
            return False
        return True
