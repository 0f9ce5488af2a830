"""What a member may claim of a step whose ring broke, with the ring of our own sockets."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_launch.errors import RingError
from elastic_launch.trainer.ring.ring import RingOptions
from elastic_launch.trainer.ring.sockets import SocketRing


def test_a_step_whose_reductions_were_refused_is_not_stood_behind() -> None:
    ring = SocketRing(1, 0, 1, RingOptions(), None)
    try:
        ring.form()
        ring.begin_step()
        ring.start_allreduce(np.ones(2)).wait()
        assert ring.reductions_succeeded()
        ring.begin_step()
        ring.abort("a member is gone")
        assert ring.reductions_succeeded()  # of none
        with pytest.raises(RingError):
            ring.start_allreduce(np.ones(2))
        assert not ring.reductions_succeeded()
    finally:
        ring.close()


def test_nor_one_in_which_a_gathering_failed() -> None:
    ring = SocketRing(1, 0, 1, RingOptions(), None)
    ring.form()
    ring.begin_step()
    ring.close()
    with pytest.raises(RingError):
        ring.gather_bytes(b"what I have")
    assert not ring.reductions_succeeded()
