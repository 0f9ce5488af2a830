"""NCCL beside the ring of our own sockets, on one GPU: a ring of one."""

from __future__ import annotations

import pytest

from elastic_launch.errors import RingError
from elastic_launch.trainer.ring.ring import RingOptions

torch = pytest.importorskip("torch", reason="needs torch")
beside = pytest.importorskip("elastic_launch.trainer.pytorch.ring.beside")


@pytest.mark.gpu
def test_sums_of_device_tensors_are_settled_before_the_vote_and_end_with_the_ring() -> None:
    ring = beside.SocketRingWithNccl(1, 0, 1, RingOptions(), None)
    ring.form()
    ring.begin_step()
    gradient = torch.full((1_000_000,), 3.0, device="cuda")
    ring.start_sum(gradient)
    ring.settle_reductions()
    assert ring.reductions_succeeded()
    assert torch.equal(gradient, torch.full_like(gradient, 3.0))
    ring.abort("the test said so")
    with pytest.raises(RingError, match="the test said so"):
        ring.start_sum(gradient)
    ring.close()
