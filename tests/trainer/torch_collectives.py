"""Every collective of `torch.distributed` once, in the default group, against what it must give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8,
]  # fmt: skip


def mismatches() -> list[str]:
    """What was not as it must be, each in words."""
    found = []
    for check in CHECKS:
        try:
            check(dist.get_rank(), dist.get_world_size())
        except Exception as error:
            found.append(f"{check.__name__}: {type(error).__name__}: {error}")
    return found


def refusals() -> list[str]:
    """What is said of those that there are not."""
    peer = 1 - dist.get_rank() if dist.get_rank() < 2 else 0
    found = []
    for call in (lambda: dist.send(torch.ones(1), peer), lambda: dist.recv(torch.ones(1), peer)):
        try:
            call()
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def ours(rank: int, size: int, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape) % 5 * (rank + 1)).to(dtype)


def equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype and torch.equal(got, wanted), f"{got} in the place of {wanted}"


def summed(size: int, *arguments: Any) -> torch.Tensor:
    total = ours(0, size, *arguments)
    for rank in range(1, size):
        total = total + ours(rank, size, *arguments)
    return total


def all_reduce(rank: int, size: int) -> None:
    for dtype in DTYPES:
        for shape in [(), (7,), (300, 400)]:
            tensor = ours(rank, size, shape, dtype)
            dist.all_reduce(tensor)
            equal(tensor, summed(size, shape, dtype))
    tensor = ours(rank, size)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    equal(tensor, ours(size - 1, size))
    tensor = ours(rank, size)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    equal(tensor, summed(size) / size)
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    equal(flags, torch.tensor([True, False, True]))


def all_reduce_of_what_has_gaps_or_is_complex(rank: int, size: int) -> None:
    whole = ours(rank, size, (4, 6))
    dist.all_reduce(whole[:, 1])
    equal(whole[:, 1], summed(size, (4, 6))[:, 1])
    equal(whole[:, 2], ours(rank, size, (4, 6))[:, 2])
    number = torch.complex(ours(rank, size), -ours(rank, size))
    dist.all_reduce(number)
    equal(number, torch.complex(summed(size), -summed(size)))
    parameter = torch.nn.Parameter(ours(rank, size))
    dist.all_reduce(parameter)
    equal(parameter.detach(), summed(size))


def all_reduce_in_the_background(rank: int, size: int) -> None:
    tensors = [ours(rank, size, (50_000,)) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(works, tensors, strict=True):
        assert work is not None
        work.wait()
        equal(tensor, summed(size, (50_000,)))
        assert work.is_completed() and work.is_success()


def reduce_and_broadcast(rank: int, size: int) -> None:
    for root in range(size):
        tensor = ours(rank, size)
        dist.reduce(tensor, root)
        equal(tensor, summed(size) if rank == root else ours(rank, size))
        tensor = ours(rank, size)
        dist.broadcast(tensor, root)
        equal(tensor, ours(root, size))


def all_gather(rank: int, size: int) -> None:
    rooms = [torch.empty(3, 5) for _ in range(size)]
    dist.all_gather(rooms, ours(rank, size))
    for other, room in enumerate(rooms):
        equal(room, ours(other, size))
    room = torch.empty(size * 3, 5)
    dist.all_gather_into_tensor(room, ours(rank, size))
    equal(room, torch.cat([ours(other, size) for other in range(size)]))


def gather_and_scatter(rank: int, size: int) -> None:
    rooms = [torch.empty(3, 5) for _ in range(size)] if rank == 1 else None
    dist.gather(ours(rank, size), rooms, 1)
    for other, room in enumerate(rooms or []):
        equal(room, ours(other, size))
    tensor = torch.empty(3, 5)
    dist.scatter(tensor, [ours(other, size) for other in range(size)] if rank == 1 else None, 1)
    equal(tensor, ours(rank, size))


def reduce_scatter(rank: int, size: int) -> None:
    parts = [ours(rank, size) + other for other in range(size)]
    tensor = torch.empty(3, 5)
    dist.reduce_scatter(tensor, parts)
    equal(tensor, summed(size) + size * rank)
    tensor = torch.empty(3, 5)
    dist.reduce_scatter_tensor(tensor, torch.cat(parts))
    equal(tensor, summed(size) + size * rank)


def all_to_all(rank: int, size: int) -> None:
    rooms = [torch.empty(3, 5) for _ in range(size)]
    dist.all_to_all(rooms, [ours(rank, size) + other for other in range(size)])
    for other, room in enumerate(rooms):
        equal(room, ours(other, size) + rank)
    own = torch.full((size * (size + 1) // 2, 2), float(rank))  # one row to rank 0, two to rank 1, and so on
    room = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(room, own, [rank + 1] * size, [other + 1 for other in range(size)])
    equal(room, torch.cat([torch.full((rank + 1, 2), float(other)) for other in range(size)]))


def objects_and_barrier(rank: int, size: int) -> None:
    dist.barrier()
    rooms: list[Any] = [None] * size
    dist.all_gather_object(rooms, {"rank": rank, "more": "x" * rank})
    assert [room["rank"] for room in rooms] == list(range(size))
    values = [f"of {rank}"]
    dist.broadcast_object_list(values, 0)
    assert values == ["of 0"]


def groups_of_some(rank: int, size: int) -> None:
    group = dist.new_group([0, size - 1])
    everybody = dist.new_group()
    if rank in (0, size - 1):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        equal(tensor, torch.tensor([2.0]))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=everybody)
    equal(tensor, torch.tensor([float(size)]))


def data_parallel(rank: int, size: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    data = torch.randn(12 * size, 20, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        parallel(data[12 * rank : 12 * rank + 12]).square().mean().backward()
    got = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for _ in range(3):
        model(data).square().mean().backward()
    for gradient, parameter in zip(got, model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad)


CHECKS: list[Callable[[int, int], None]] = [
    all_reduce,
    all_reduce_of_what_has_gaps_or_is_complex,
    all_reduce_in_the_background,
    reduce_and_broadcast,
    all_gather,
    gather_and_scatter,
    reduce_scatter,
    all_to_all,
    objects_and_barrier,
    groups_of_some,
    data_parallel,
]
