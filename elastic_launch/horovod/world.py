"""This process as a member of the job: `init` makes it one, `reset` takes it into the next generation.

All contact with the trainer is here. The trainer copies no state for it: `elastic.State.sync` does that over the ring.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ..errors import RingError, UsageError
from ..rendezvous.messages import Finished, Registered
from ..trainer import joining
from ..trainer.control import Control
from ..trainer.exchange import Decision
from ..trainer.member import Member, Stale
from ..trainer.ring.sockets import SocketRing
from . import collectives
from .carrier import Carrier
from .claims import Claim, source_of
from .common.exceptions import HorovodInternalError
from .engine import Engine
from .performing import fusion_limit
from .places import Place, Seat, place

STALE = 66  # exit code of a worker that is to be started afresh, free of charge


class NotInitialized(UsageError, ValueError):
    """`hvd.init()` has not been called."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


class NoState:
    """What the trainer would copy to those that join: nothing. A script that `starts_again` may do so from its checkpoint.

    `came_later`: this worker was missing in a generation that formed, in which the others may have had a state.
    """

    def __init__(self, starts_again: bool) -> None:
        self.starts_again = starts_again
        self.came_later = False

    def structure_digest(self) -> str:
        return ""

    def structure_bytes(self) -> bytes:
        return b""

    def explain_structure(self, other: bytes) -> str:
        return ""

    def digest(self) -> str:
        return ""

    def samples(self) -> float:
        return 0.0

    def epoch(self) -> int:
        return 0

    def newest_checkpoint(self) -> int:
        return int(self.starts_again)

    def bring_together(self, ring: Any, decision: Decision, secret: str, address: str) -> None:
        self.came_later |= not decision.is_start and ring.rank in decision.receivers


class World:
    """Used by the main thread, but for the engine's own.

    Where the script knows of no change (`starts_again`), its process ends when a worker is lost, and is started afresh.
    """

    def __init__(self, control: Control, starts_again: bool = False) -> None:
        self._control = control
        self._starts_again = starts_again
        self._state = NoState(starts_again)
        self._member = Member(control, self._state, SocketRing)  # type: ignore[arg-type]
        self._member.step_number = lambda: self.commits
        self._carrier: Carrier | None = None
        self._engine: Engine | None = None
        self.place = Place()
        self.generation = 0
        self.has_state = False
        self.commits = 0
        self._source: int | None = None
        self._commits_of_source = 0
        control.send(Registered(control.identity.worker))

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise NotInitialized()
        if self._starts_again and self._is_leaving:
            raise Stale()  # who is left starts again
        return self._engine

    def goes_on_after_changes(self) -> None:
        """The script turns out to have a function that is called again, which was not seen in its text."""
        self._starts_again = self._state.starts_again = False

    @property
    def code_of_failure(self) -> int:
        """Exit code of a script that ends with an error."""
        if not self._starts_again or not (self.is_broken or self._is_leaving):
            return 1
        print(
            "elastic: a worker was lost, which this script knows nothing of: it starts again",
            file=sys.stderr,
            flush=True,
        )
        return STALE

    @property
    def _is_leaving(self) -> bool:
        """A generation without this worker is announced."""
        announced = self._control.announced
        without = announced is not None and (self._control.rank_in(announced) or 0) < 0
        return without or self._control.may_leave is not None

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def is_broken(self) -> bool:
        return self._carrier is not None and self._carrier.is_broken

    def open(self) -> None:
        """Be in a ring with an engine of its own. Ends the process with 0 if this worker may leave."""
        while True:
            self._member.boundary()
            ring = self._member.ring
            assert isinstance(ring, SocketRing)
            carrier = Carrier(ring)
            try:
                said = carrier.gather_bytes(msgspec.msgpack.encode(self._seat()))
            except RingError:
                continue  # and form the next one
            seats = [msgspec.msgpack.decode(each, type=Seat) for each in said]
            limit = seats[0].fusion_limit
            engine = Engine(carrier, ring.rank, ring.world_size, self._control.hang_timeout, limit)
            self.place = place(seats, ring.rank)
            self.generation = ring.generation
            self._source = None
            self._carrier, self._engine = carrier, engine
            carrier.when_broken(engine.fail)
            return

    def shut(self) -> None:
        """No collectives until it is opened again."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            if not engine.end() and self._carrier is not None:
                self._carrier.abort("a member left with collectives under way")

    def reset(self, failed: bool) -> None:
        """Into the next generation: after a failed collective, or after all have agreed to a change."""
        self.shut()
        if failed and self._carrier is not None and not self._carrier.is_broken:
            self._carrier.abort("a collective failed on a member of it")
        self.open()

    @property
    def wants_change(self) -> bool:
        return self._member.change_wanted

    def leave_agreed(self) -> None:
        """All members leave this ring here, for the generation that was announced."""
        self._member.leave_agreed = True

    def committed(self) -> None:
        self.commits += 1
        self._member.write_progress()

    def wait_for_lease(self) -> None:
        """In a ring of one, until the server counts it in. Raises `HorovodInternalError` if the ring ends meanwhile."""
        if self._member.ring is None:
            return
        try:
            self._member.wait_for_lease(self._member.ring)
        except RingError as error:
            raise HorovodInternalError(str(error)) from error

    def source(self) -> int:
        """The rank whose state is the job's: the lowest of those with the newest one. Asked by all members at one point.

        Raises `HorovodInternalError` if the ring breaks, `ElasticError` if nobody has the state any more.
        """
        if self._source is None:
            claim = Claim(self.has_state, self.commits, self._state.came_later)
            said = collectives.gather_bytes(self.engine, msgspec.msgpack.encode(claim), "elastic.claims")
            claims = [msgspec.msgpack.decode(each, type=Claim) for each in said]
            self._source = source_of(claims)
            self._commits_of_source = claims[self._source].commits
        return self._source

    def has_synced(self) -> None:
        """This member has kept the source's state, which is newer than what anybody had kept before."""
        self.has_state = True
        self.commits = self._commits_of_source + 1

    # --- the end: called by the trainer's main module ---

    def finish(self) -> None:
        """The script has come to its end: say so, and stay reachable until the whole job is done."""
        if self._member.ring is None:
            self._member.boundary()
        self._control.send(Finished(self._control.identity.worker))
        with self._control.changed:
            while not self._control.done and self._control.may_leave is None:
                self._control.changed.wait()  # ends at the latest with the agent
        self.close()

    def close(self) -> None:
        self.shut()
        self._member.close()

    def wait_until_closed(self, limit: float) -> None:
        """Nothing is left by then."""

    def _seat(self) -> Seat:
        identity = self._control.identity
        return Seat(identity.host, identity.local_rank, fusion_limit())


_world: World | None = None
_scripts_start_again = False


def current() -> World:
    """The world of this process. Raises `NotInitialized` before the first `init`."""
    if _world is None:
        raise NotInitialized()
    return _world


def is_initialized() -> bool:
    return _world is not None and _world.is_open


def let_scripts_start_again() -> None:
    """The script of this process has no function that is called again after a change."""
    global _scripts_start_again
    _scripts_start_again = True


def init() -> None:
    """Become a member of the job, or a job of one where no agent started this process. Nothing happens the second time."""
    global _world
    if _world is None:
        _world = joining.enter(lambda control, checkpoints: World(control, _scripts_start_again))  # type: ignore[type-var]
    if not _world.is_open:
        _world.open()
