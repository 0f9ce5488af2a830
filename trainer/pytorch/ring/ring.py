"""The ring of one generation for torch. `torch.distributed`'s default group is always the current ring."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed import distributed_c10d

from ....errors import RingError
from ....rendezvous.meeting.client import MeetingClient
from ...ring.ring import Ring, RingOptions, Vector
from . import gloo, nccl, tcp_connecting, undertaker
from .addresses import RingAddresses
from .futures import Future, error_of, wait_for, watch
from .group import BACKEND, ElasticGroup, make_groups_with
from .store import RingStore

ONE_HOP_LIMIT = 16  # members up to which a vote goes from each to each


class TorchRing(Ring):
    """A ring for torch's tensors: gloo or our own sockets for those on the CPU, NCCL beside it for those on a GPU."""

    def __init__(
        self, generation: int, rank: int, world_size: int, options: RingOptions, meeting: MeetingClient | None
    ):
        super().__init__(generation, rank, world_size, options, meeting)
        self._addresses = RingAddresses()
        self._groups: list[ElasticGroup] = []
        self._lock = threading.Lock()
        self._connecting: gloo.Connecting | tcp_connecting.Connecting | None = None
        self._stores: list[Store] = []
        self._reductions: list[Future] = []
        self._cuda_works: list[Any] = []
        self._cuda_settled = False
        self._asked_in_vain = False  # a reduction of this step was refused, also if the script has caught the error
        self.guard.on_abort(self._shut_sockets)

    @property
    def kind(self) -> str:
        return f"{self.options.backend} for PyTorch" + (", with NCCL" if self.options.cuda else "")

    def connect(self) -> None:
        store, address = self._store("ring"), self.options.address
        if self.options.backend == "tcp":
            self._connecting = tcp_connecting.connecting(
                self.meeting, self.rank, self.world_size, address, self._limits, self.guard
            )
        else:
            self._connecting = gloo.Connecting(store, self.rank, self.world_size, address, self.guard)

    def form(self) -> None:
        """Also makes this ring torch's default group."""
        if self._connecting is None:
            self.connect()
        connecting, self._connecting = self._connecting, None
        assert connecting is not None
        below: Any = connecting.result()
        if self.options.backend == "gloo":
            below._set_default_timeout(self._operation_timeout)
        over_nccl = None
        if self.options.cuda:
            over_nccl = nccl.connect(self._stores[0], self.rank, self.world_size, self.guard, self._operation_timeout)
        group = self._adopt(below, over_nccl, self.rank, self.world_size)
        _install(group, self._make_subgroup, self._stores[0], self.rank, self.world_size)
        self.guard.check()

    @property
    def group(self) -> ElasticGroup:
        return self._groups[0]

    def start_sum(self, tensor: torch.Tensor) -> Future:
        """Start a sum of `tensor` over the ring, in place; the future's value is `tensor`. One of this step's reductions."""
        group, options = self.group, dist.AllreduceOptions()
        try:
            group.check_usable()
        except RingError:
            self._asked_in_vain = True
            raise
        if tensor.is_cuda:
            work = group.nccl.allreduce([tensor], options)
            self._cuda_works.append(work)
            future: Future = work.get_future().then(lambda done: done.value()[0])
        else:
            future = watch(self.guard, group.cpu.allreduce([tensor], options), tensor)
        self._reductions.append(future)
        return future

    def begin_step(self) -> None:
        self._reductions, self._cuda_works, self._cuda_settled = [], [], False
        self._asked_in_vain = False

    def reductions_succeeded(self) -> bool:
        if self._asked_in_vain or not all(future.done() and error_of(future) is None for future in self._reductions):
            return False
        return not self._cuda_works or self._cuda_settled

    def settle_reductions(self) -> None:
        if self._cuda_works:
            nccl.settled(self._cuda_works, self.guard, torch.device("cuda", torch.cuda.current_device()))
            self._cuda_settled = True
        self.guard.check()

    def sum_for_vote(self, ballot: Vector) -> None:
        """In small rings everybody sends to everybody, which takes one hop: gloo's allreduce goes twice around the ring, and
        each hop waits until another process is scheduled.
        """
        self.guard.check()
        if self.world_size == 1:
            return
        vote = torch.from_numpy(ballot)  # the same memory
        if self.options.backend == "tcp":
            tcp_connecting.at_once(self.guard, self.group.cpu.ring.allreduce, vote)
            return
        if self.world_size > ONE_HOP_LIMIT:
            wait_for(watch(self.guard, self.group.cpu.allreduce([vote], dist.AllreduceOptions())))
            return
        sent = vote.repeat(self.world_size)
        received = torch.empty_like(sent)
        work = self.group.cpu.alltoall_base(received, sent, [], [], dist.AllToAllOptions())
        wait_for(watch(self.guard, work))
        first, *others = received.chunk(self.world_size)
        vote.copy_(first)
        for other in others:
            vote.add_(other)

    def reduce(self, tensor: torch.Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        """All-reduce a CPU tensor in place and wait. Raises `RingError`."""
        if self.world_size == 1:
            self.group.check_usable()
            return
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        wait_for(self.group.start("allreduce", False, [tensor], options).get_future())

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Broadcast a CPU tensor from rank `source`, in place, and wait. Raises `RingError`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        wait_for(self.group.start("broadcast", False, [tensor], options).get_future())

    def gather_bytes(self, data: bytes) -> list[bytes]:
        if self.options.backend == "tcp":
            self.group.check_usable()
            return tcp_connecting.at_once(self.guard, self.group.cpu.ring.gather_bytes, data)
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        self.reduce(sizes)
        longest = int(sizes.max())
        table = torch.zeros((self.world_size, max(longest, 1)), dtype=torch.uint8)
        if data:
            table[self.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.reduce(table)
        return [bytes(table[rank, : int(sizes[rank])].numpy().tobytes()) for rank in range(self.world_size)]

    def close(self) -> None:
        """Its groups become stale."""
        self.guard.abort("closed")
        if self._connecting is not None:
            self._connecting = None
        below: list[Any] = []
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            below += group.retire()
        _uninstall(groups)
        below += self._stores
        self._stores.clear()
        if below:
            undertaker.bury(below, f"ring-{self.generation}")  # which empties the list: no reference stays here
        if self.meeting is not None:
            self.meeting.close()

    @property
    def _operation_timeout(self) -> timedelta:
        return timedelta(seconds=self.options.operation_limit)

    @property
    def _limits(self) -> tuple[float, float]:
        return self.options.forming_limit, self.options.operation_limit

    def _store(self, prefix: str) -> Store:
        base: Store
        if self.meeting is None:
            base = HashStore()
        else:
            base = RingStore(self.meeting, self._addresses.learn, self.options.forming_limit)
        store = PrefixStore(prefix, base)
        self._stores += [store, base]
        return store

    def _shut_sockets(self) -> None:
        self._addresses.shut()

    def _adopt(self, below: Any, over_nccl: Any, rank: int, size: int) -> ElasticGroup:
        group = ElasticGroup(self.guard, below, over_nccl, rank, size, lambda: self.refuse_collectives)
        with self._lock:
            self._groups.append(group)
        return group

    def _make_subgroup(self, store: Store, rank: int, size: int) -> ElasticGroup:
        self.guard.check()
        below: Any
        if self.options.backend == "tcp":
            limits = self._limits
            below = tcp_connecting.subgroup(store, self.meeting, rank, size, self.options.address, limits, self.guard)
        else:
            below = gloo.connect(store, rank, size, self.options.address, self.guard, self._operation_timeout)
        over_nccl = None
        if self.options.cuda:
            over_nccl = nccl.connect(store, rank, size, self.guard, self._operation_timeout)
        self._stores.append(store)
        return self._adopt(below, over_nccl, rank, size)


_stale: weakref.WeakKeyDictionary[ElasticGroup, dict[int, int]] = weakref.WeakKeyDictionary()


def _install(
    group: ElasticGroup,
    make_subgroup: Callable[[Store, int, int], ElasticGroup],
    store: Store,
    rank: int,
    size: int,
) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    hook = sys.excepthook  # torch nests it deeper with each initialisation
    world = distributed_c10d._world
    world.group_count = 0  # names of groups must be the same on members of every age
    make_groups_with(lambda *_: group)
    try:
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
    finally:
        sys.excepthook = hook
        make_groups_with(make_subgroup)
    for stale, ranks in _stale.items():
        # Known to torch, so that it passes on the stale group's own error in place of one about an unknown group.
        world.pg_map[stale] = (BACKEND, store)
        world.pg_group_ranks[stale] = ranks


def _uninstall(groups: list[ElasticGroup]) -> None:
    make_groups_with(None)
    if groups and dist.is_initialized() and dist.group.WORLD is groups[0]:
        for subgroup in groups[1:]:
            _stale[subgroup] = dict(distributed_c10d._world.pg_group_ranks.get(subgroup, {}))
        dist.destroy_process_group()
