"""What the members say of the states that they hold, and whose is the job's: a pure decision, the same on every member."""

from __future__ import annotations

import msgspec

from ..errors import ElasticError


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of its state. `came_later`: it was missing in a generation whose members may have had one."""

    has_state: bool
    commits: int
    came_later: bool


def source_of(claims: list[Claim]) -> int:
    """Raises `ElasticError` if there was a state, and nobody has it: the job must not begin again as if nothing had been.

    A state takes all members of a generation to make: as long as one of those that were in all of them has none, there is none.
    """
    newest = max((claim.commits for claim in claims if claim.has_state), default=None)
    if newest is not None:
        return next(rank for rank, claim in enumerate(claims) if claim.has_state and claim.commits == newest)
    if all(claim.came_later for claim in claims):
        raise ElasticError(
            "every worker that held the job's state is gone, and those that are left had not received it yet: start the job"
            " again, from its own checkpoint if it writes one"
        )
    return 0
