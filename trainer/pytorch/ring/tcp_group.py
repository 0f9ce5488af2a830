"""The ring of our own sockets as a group below `ElasticGroup`, in the place of gloo, for CPU tensors.

It carries every collective of `torch.distributed`. Those that a ring has no way of its own for are made of others: `gather` and
`all_to_all` cost an all-gather, `reduce` an all-reduce, `scatter` a broadcast. Messages between two members are refused:
only neighbours are connected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ....errors import RingError, UsageError
from ...ring.tcp.ring import TcpRing
from ...ring.tcp.turns import Work
from .futures import Future

Tensors = Sequence[torch.Tensor]

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


class TcpWork:
    """One or more calls of the ring that make up an operation, as what `Guard` watches.

    `finish` is called when all have ended well, ahead of the future's completion.
    """

    def __init__(self, works: Sequence[Work[Any]], value: Any, finish: Callable[[], None] | None = None) -> None:
        self._future: Future = torch.futures.Future()
        self._works = works
        self._value = value
        self._finish = finish
        if works:
            works[-1].when_done(self._over)  # the last one of them: they are made in order
        else:
            self._future.set_result(value)

    def get_future(self) -> Future:
        return self._future

    def _source_rank(self) -> int:
        return -1

    def _over(self, _: Work[Any]) -> None:
        works, self._works = self._works, []
        failed = next((error for error in (work.exception() for work in works) if error is not None), None)
        if failed is None and self._finish is not None:
            try:
                self._finish()
            except Exception as error:
                failed = error
        self._finish = None
        if failed is None:
            self._future.set_result(self._value)
        else:
            self._future.set_exception(RingError(str(failed)))  # one without a traceback, whose frames hold the tensors


class TcpGroup:
    """Operations under the names, and with the arguments, of `torch.distributed.ProcessGroup`."""

    def __init__(self, ring: TcpRing) -> None:
        self.ring = ring

    def allreduce(self, tensors: Tensors, options: Any) -> TcpWork:
        operation = _operation(options)
        pairs = [(tensor, _numbers(tensor)) for tensor in tensors]
        return TcpWork(
            [self.ring.start_allreduce(flat, operation) for _, flat in pairs], list(tensors), _back_into(pairs)
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, options: Any) -> TcpWork:
        if options.rootRank == self.ring.rank:
            return self.allreduce(tensors, options)
        operation, works = _operation(options), []
        for tensor in tensors:
            flat = _numbers(tensor)
            works.append(self.ring.start_allreduce(flat, operation, out=torch.empty_like(flat)))
        return TcpWork(works, list(tensors))

    def broadcast(self, tensors: Tensors, options: Any) -> TcpWork:
        pairs = [(tensor, _bytes(tensor)) for tensor in tensors]
        works = [self.ring.start_broadcast(flat, options.rootRank) for _, flat in pairs]
        return TcpWork(works, list(tensors), _back_into(pairs))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None) -> TcpWork:
        works, pairs = [], []
        for given, own in zip(outputs, inputs, strict=True):
            rooms = [(output, _bytes(output)) for output in given]
            works.append(self.ring.start_allgather(_bytes(own), [flat for _, flat in rooms]))
            pairs += rooms
        return TcpWork(works, [list(given) for given in outputs], _back_into(pairs))

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None) -> TcpWork:
        by_input = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, options: Any = None) -> TcpWork:
        return self.allgather_into_tensor_coalesced([output], [own])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> TcpWork:
        pairs = [(output, _bytes(output)) for output in outputs]
        works = [self.ring.start_allgather(_bytes(own), flat) for (_, flat), own in zip(pairs, inputs, strict=True)]
        return TcpWork(works, list(outputs), _back_into(pairs))

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any) -> TcpWork:
        if options.rootRank == self.ring.rank:
            return self.allgather(outputs, inputs)
        return TcpWork([self.ring.start_allgather(_bytes(own)) for own in inputs], [])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> TcpWork:
        root, rank = options.rootRank, self.ring.rank
        works, wholes = [], []
        for index, output in enumerate(outputs):
            size = output.numel() * output.element_size()
            if root == rank:
                whole = torch.cat([_bytes(each) for each in inputs[index]])
            else:
                whole = torch.empty(size * self.ring.world_size, dtype=torch.uint8)
            works.append(self.ring.start_broadcast(whole, root))
            wholes.append(whole[rank * size : (rank + 1) * size])
        return TcpWork(works, list(outputs), _back_into([*zip(outputs, wholes, strict=True)]))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> TcpWork:
        operation = _operation(options)
        works, pairs = [], []
        for output, given in zip(outputs, inputs, strict=True):
            flat, parts = _numbers(output), [_numbers(each).reshape(-1) for each in given]
            counts = [part.numel() for part in parts]
            works.append(self.ring.start_reduce_scatter(torch.cat(parts), flat, operation, counts))
            pairs.append((output, flat))
        return TcpWork(works, list(outputs), _back_into(pairs))

    def _reduce_scatter_base(self, output: torch.Tensor, own: torch.Tensor, options: Any) -> TcpWork:
        return self.reduce_scatter_tensor_coalesced([output], [own], options)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any) -> TcpWork:
        operation = _operation(options)
        pairs = [(output, _numbers(output)) for output in outputs]
        works = [
            self.ring.start_reduce_scatter(_numbers(own), flat, operation)
            for (_, flat), own in zip(pairs, inputs, strict=True)
        ]
        return TcpWork(works, list(outputs), _back_into(pairs))

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> TcpWork:
        rank = self.ring.rank
        parts = [_bytes(each) for each in inputs]
        sizes = self.ring.start_allgather(torch.tensor([part.numel() for part in parts], dtype=torch.int64))
        everything = self.ring.start_allgather(torch.cat(parts))

        def pick() -> None:
            for output, counts, given in zip(outputs, sizes.wait(), everything.wait(), strict=True):
                start = int(counts[:rank].sum())
                mine = torch.from_numpy(given[start : start + int(counts[rank])])
                if mine.numel() != output.numel() * output.element_size():
                    raise UsageError(f"{mine.numel()} bytes came for an output of shape {tuple(output.shape)}")
                _put(output, mine)

        return TcpWork([sizes, everything], list(outputs), pick)

    def alltoall_base(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any = None,
    ) -> TcpWork:
        size = self.ring.world_size
        outputs = torch.split(output, list(output_splits)) if output_splits else output.chunk(size)
        inputs = torch.split(own, list(input_splits)) if input_splits else own.chunk(size)
        if len(outputs) != size or len(inputs) != size:
            raise UsageError(f"all_to_all of {len(inputs)} parts into {len(outputs)} in a ring of {size}")
        return self.alltoall(outputs, inputs)

    all_to_all_single = alltoall_base

    def barrier(self, options: Any = None) -> TcpWork:
        return TcpWork([self.ring.start_barrier()], [])

    def send(self, *_: Any) -> TcpWork:
        raise _refusal("send")

    def recv(self, *_: Any) -> TcpWork:
        raise _refusal("recv")

    def recv_anysource(self, *_: Any) -> TcpWork:
        raise _refusal("recv")

    def monitored_barrier(self, *_: Any) -> TcpWork:
        raise _refusal("monitored_barrier")


def _refusal(operation: str) -> UsageError:
    return UsageError(
        f"the ring of the backend tcp has no {operation}: it connects neighbours alone. Use collectives, or run with"
        " --backend gloo"
    )


def _operation(options: Any) -> str:
    for name, operation in _OPERATIONS.items():
        if options.reduceOp == operation:
            return name
    raise UsageError(f"the ring of the backend tcp cannot compute {options.reduceOp}; run with --backend gloo")


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers in a row: its own memory, or a copy if that has gaps."""
    if tensor.layout is not torch.strided:
        raise UsageError(f"the ring of the backend tcp carries dense tensors, not {tensor.layout}: use to_dense()")
    dense = tensor.detach().contiguous()
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return _numbers(tensor).reshape(-1).view(torch.uint8)


def _put(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    target = tensor.detach()
    target.copy_(flat.view(target.dtype).reshape(target.shape))


def _back_into(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None] | None:
    """What copies the results into those tensors that are not the same memory; None if all are."""
    copied = [(tensor, flat) for tensor, flat in pairs if tensor.data_ptr() != flat.data_ptr()]
    if not copied:
        return None

    def finish() -> None:
        for tensor, flat in copied:
            _put(tensor, flat)

    return finish
