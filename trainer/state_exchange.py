"""The state when a generation forms: receivers get it from all sources at once, buffers become the lead's, digests must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from ..errors import ElasticError, StateMismatchError
from .exchange import Action, Decision
from .probe import reached
from .ring.ring import Ring
from .state.copy import CopyReceiver, CopySource
from .state.replica import Replica
from .state.structure import Structure

if TYPE_CHECKING:
    from .checkpoint import Checkpoints

RESTORE_LIMIT = 3600.0  # seconds that loading a checkpoint may take
COPY_LIMIT = 60.0  # seconds that a receiver waits for a source's address; the copy has a progress limit of its own


class Position(Protocol):
    samples: int
    epoch: int


class StateExchange:
    """The replica of one worker, as its member sees it."""

    def __init__(self, replica: Replica, checkpoints: Checkpoints | None, position: Position) -> None:
        self.replica = replica
        self.checkpoints = checkpoints
        self._position = position

    def structure_digest(self) -> str:
        return self.replica.structure().digest()

    def structure_bytes(self) -> bytes:
        return self.replica.structure().to_bytes()

    def explain_structure(self, other: bytes) -> str:
        return self.replica.structure().explain(Structure.from_bytes(other))

    def digest(self) -> str:
        return self.replica.digest()

    def samples(self) -> float:
        return float(self._position.samples)

    def epoch(self) -> int:
        return self._position.epoch

    def newest_checkpoint(self) -> int:
        newest = self.checkpoints.newest() if self.checkpoints is not None else None
        return newest[1] if newest is not None else 0

    def bring_together(self, ring: Ring, decision: Decision, secret: str, address: str) -> None:
        """Carry out the decision's copies, on every member. Raises `RingError` when the generation ends meanwhile."""
        action = decision.actions[ring.rank]
        if action is Action.RESTORE:
            if self.checkpoints is None:
                raise ElasticError("there is no checkpoint to restore")
            self.checkpoints.restore(self.replica)
        if not decision.receivers:
            return
        reached("copying", ring.generation)
        if action is Action.COPY:
            self._receive(ring, decision, secret)
        elif ring.rank in decision.sources:
            self._send(ring, decision, secret, address)
        self.replica.share_buffers(ring, decision.sources[0])
        self._compare_digests(ring, decision.sources[0])

    def _send(self, ring: Ring, decision: Decision, secret: str, address: str) -> None:
        assert ring.meeting is not None
        source = CopySource(address, secret)
        try:
            ring.guard.on_abort(source.abort)
            ring.meeting.set(f"copy/{ring.rank}", source.address.encode())
            source.serve(self.replica.capture(), len(decision.receivers))
        finally:
            source.close()
        ring.guard.check()

    def _receive(self, ring: Ring, decision: Decision, secret: str) -> None:
        assert ring.meeting is not None
        limit = RESTORE_LIMIT if Action.RESTORE in decision.actions else COPY_LIMIT
        addresses = [ring.meeting.get(f"copy/{rank}", limit).decode() for rank in decision.sources]
        receiver = CopyReceiver(addresses, secret)
        try:
            ring.guard.on_abort(receiver.abort)
            incoming = self.replica.prepare(receiver.meta())
            receiver.fetch(incoming.payload())
            incoming.commit()
        finally:
            receiver.close()
        ring.guard.check()

    def _compare_digests(self, ring: Ring, lead: int) -> None:
        digests = [msgspec.json.decode(each) for each in ring.gather_bytes(msgspec.json.encode(self.replica.digests()))]
        own, leads = digests[ring.rank], digests[lead]
        if own != leads:
            names = sorted(name for name in own.keys() | leads.keys() if own.get(name) != leads.get(name))
            raise StateMismatchError(
                f"after the copy, the state of rank {ring.rank} differs from that of rank {lead} in: {', '.join(names)}"
            )
