"""A job whose variables are read and set as numpy arrays, and whose ring is of our own sockets: without any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .data.arrays import in_memory, length_of, rows_of
from .job import BaseJob
from .member import Change
from .place import address_on, keep_current
from .ring.ring import Ring
from .ring.sockets import SocketRing
from .units import agree, share_of

Array: TypeAlias = npt.NDArray[Any]

_OPERATIONS = ("sum", "mean", "min", "max")


class ArrayJob(BaseJob):
    """What the jobs of TensorFlow and Keras share. Arrays are in the CPU's memory."""

    make_ring = SocketRing

    def _changed(self, change: Change) -> None:
        if self.member.ring is not None:
            keep_current(self.member.ring, address_on(self._control.identity.address))
        super()._changed(change)

    @property
    def ring(self) -> SocketRing:
        """The current generation's; one is formed if there is none."""
        ring = self._ring()
        assert isinstance(ring, SocketRing)
        return ring

    def allreduce(self, value: Any, op: str = "mean") -> Any:
        """A float for a number, else a fresh array."""
        self._check_between_steps("job.allreduce")
        if op not in _OPERATIONS:
            raise UsageError(f"job.allreduce knows the operations {', '.join(_OPERATIONS)}, not {op!r}")
        source = np.asarray(float(value) if isinstance(value, (bool, int, float)) else value)
        if op == "mean" and source.dtype.kind in "iub":
            source = source.astype(np.float64)

        def compute(ring: Ring) -> bytes:
            assert isinstance(ring, SocketRing)
            local = np.array(source, order="C")  # a copy, also of what is contiguous
            if ring.world_size > 1:
                ring.run(lambda below: below.allreduce(local, op))
            return local.tobytes()

        result = np.frombuffer(agree(self.member, compute), source.dtype).reshape(source.shape).copy()
        return float(result) if isinstance(value, (bool, int, float)) else result

    def means_over(
        self, data: Any, means: Callable[[Any], Mapping[str, Any]], batch_size: int = 256
    ) -> dict[str, float]:
        """Exact means over `data`, shared between the members, of what `means(batch)` gives as means over a batch."""
        self._check_between_steps("job.evaluate")
        data = in_memory(data)

        def compute(ring: Ring) -> bytes:
            self._replica.share_buffers(ring, 0)
            sums: dict[str, float] = {}
            count = 0
            for rows in share_of(length_of(data), ring.rank, ring.world_size, batch_size):
                ring.guard.check()
                for name, value in means(rows_of(data, rows)).items():
                    sums[name] = sums.get(name, 0.0) + self._number(value) * len(rows)
                count += len(rows)
            parts = [msgspec.msgpack.decode(part) for part in ring.gather_bytes(msgspec.msgpack.encode([sums, count]))]
            total = sum(part[1] for part in parts)
            names = list(dict.fromkeys(name for part in parts for name in part[0]))
            return msgspec.msgpack.encode(
                {name: sum(part[0].get(name, 0.0) for part in parts) / max(total, 1) for name in names}
            )

        result: dict[str, float] = msgspec.msgpack.decode(agree(self.member, compute))
        return result

    def training_ring(self) -> SocketRing | None:
        """What a step's reductions go over; None in a ring of one."""
        if self.current_step is None:
            raise UsageError("gradients are reduced inside a block: put it into `with job.step():`")
        self.current_step.check_not_unwound()
        ring = self.ring
        if ring.world_size == 1:
            if self.refusal is not None:
                raise UsageError(self.refusal)
            return None
        ring.check_usable()
        return ring
