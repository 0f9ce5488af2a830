"""NCCL on one GPU: a ring of one, and an abort behind a stream that is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from elastic_launch.errors import RingError
from elastic_launch.trainer.pytorch.ring.ring import TorchRing
from elastic_launch.trainer.ring.ring import RingOptions

pytestmark = pytest.mark.gpu


@pytest.fixture
def ring() -> Iterator[TorchRing]:
    torch.cuda.set_device(0)
    ring = TorchRing(1, 0, 1, RingOptions(cuda=True), None)
    ring.form()
    ring.begin_step()
    yield ring
    ring.close()


def test_reductions_of_device_tensors_go_over_nccl_and_are_settled_before_the_vote(ring: TorchRing) -> None:
    gradient = torch.full((1_000_000,), 3.0, device="cuda")
    ring.start_sum(gradient).wait()
    assert not ring.reductions_succeeded()  # started is not done
    ring.settle_reductions()
    assert ring.reductions_succeeded()
    assert torch.equal(gradient, torch.full_like(gradient, 3.0))


def test_host_tensors_go_over_gloo_in_the_same_group(ring: TorchRing) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    on_device = torch.ones(3, device="cuda")
    dist.all_reduce(on_device)
    assert on_device.tolist() == [1.0, 1.0, 1.0]


def test_an_abort_behind_a_blocked_stream_changes_no_byte_of_a_parameter(ring: TorchRing) -> None:
    parameter = torch.randn(1_000_000, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    before = parameter.detach().clone()
    parameter.grad = torch.ones_like(parameter)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # cycles, seconds of work in front of the reduction
    ring.start_sum(parameter.grad)
    threading.Timer(0.2, ring.abort, ["the test said so"]).start()
    with pytest.raises(RingError, match="the test said so"):
        ring.settle_reductions()  # the vote waits here; the optimizer's step comes only behind it
        optimizer.step()
    assert not ring.reductions_succeeded()
    torch.cuda.synchronize()
    assert torch.equal(parameter.detach(), before)


def test_rings_over_nccl_are_formed_one_after_the_other_in_one_process(ring: TorchRing) -> None:
    ring.close()
    for generation in range(2, 7):
        following = TorchRing(generation, 0, 1, RingOptions(cuda=True), None)
        following.form()
        following.begin_step()
        tensor = torch.ones(10, device="cuda")
        following.start_sum(tensor)
        following.settle_reductions()
        following.abort("next one") if generation % 2 else following.close()
        following.close()
