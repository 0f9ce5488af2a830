"""Nested Python data as plain bytes, with its tensors set apart, so that the tensors can travel without being copied.

`Encoder.encode` turns a value into a *node*: data that msgpack can carry, in which a tensor is only its number.
`decode` turns a node back, given something for each number. Plain data (numbers, text, lists, tuples, dicts, sets) is
written as it is; an object of any other class is pickled, which is safe only because a peer proves that it knows the
generation's secret before anything of it is decoded.

A node is None, a bool, an int of 64 bits, a float, text, bytes, or a list that starts with one of the tags below.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ...errors import UsageError

Node = Any

_LIST, _TUPLE, _DICT, _ORDERED, _SET, _FROZEN, _TENSOR, _INT, _COMPLEX, _PICKLE = range(10)
_SMALL = 1 << 63
_FAST_LIMIT = (ValueError, RecursionError)  # raised by pickle without a memo for an object that contains itself

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class Encoder:
    """Encodes values one after the other and collects their tensors, each object once.

    With `canonical`, equal values give equal nodes: the order of a dict's keys and which objects are shared do not
    count. Such nodes are made to be hashed; they decode too, but a dict may come back in another order.
    """

    def __init__(self, is_tensor: Callable[[Any], bool], canonical: bool = False) -> None:
        self.tensors: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._is_tensor = is_tensor
        self._canonical = canonical

    def encode(self, value: Any, what: str = "") -> Node:
        """Raises UsageError, with the path in it, for something that cannot be serialised."""
        kind = type(value)
        if value is None or kind is bool or kind is float or kind is str or kind is bytes:
            return value
        if kind is int:
            return value if -_SMALL <= value < _SMALL else [_INT, str(value)]
        if kind is dict or kind is OrderedDict:
            tag = _DICT if kind is dict or self._canonical else _ORDERED
            return self._encode_dict(tag, value, what)
        if kind is list:
            return [_LIST, *(self.encode(item, f"{what}[{i}]") for i, item in enumerate(value))]
        if kind is tuple:
            return [_TUPLE, *(self.encode(item, f"{what}[{i}]") for i, item in enumerate(value))]
        if kind is set or kind is frozenset:
            tag = _SET if kind is set else _FROZEN
            return [tag, *sorted((self.encode(item, what) for item in value), key=_pack)]
        if self._is_tensor(value):
            return [_TENSOR, self._number(value)]
        if kind is complex:
            return [_COMPLEX, value.real, value.imag]
        return self._encode_pickled(value, what)

    def _encode_dict(self, tag: int, value: dict[Any, Any], what: str) -> Node:
        items: Iterable[tuple[Any, Any]] = value.items()
        if self._canonical:  # by the keys' nodes, and before the values are encoded: tensors are numbered in this order
            items = sorted(items, key=lambda item: _pack(Encoder(self._is_tensor, True).encode(item[0], what)))
        node: list[Node] = [tag]
        for key, item in items:
            node.append(self.encode(key, what))
            node.append(self.encode(item, f"{what}.{key}" if isinstance(key, str) else f"{what}[{key!r}]"))
        return node

    def _encode_pickled(self, value: Any, what: str) -> Node:
        try:
            try:
                written, tensors = self._pickle(value, fast=self._canonical)
            except _FAST_LIMIT:
                if not self._canonical:
                    raise
                written, tensors = self._pickle(value, fast=False)
        except Exception as error:
            raise UsageError(
                f"{what or 'a value'} of type {type(value).__qualname__} cannot be replicated ({error}); "
                "leave it out of state_dict, or give its class __getstate__"
            ) from error
        return [_PICKLE, written, [self._number(tensor) for tensor in tensors]]

    def _pickle(self, value: Any, fast: bool) -> tuple[bytes, list[Any]]:
        stream = io.BytesIO()
        pickler = _Pickler(stream, self._is_tensor, sort_sets=self._canonical)
        pickler.fast = fast  # without a memo: what is shared inside the object is written as often as it is seen
        pickler.dump(value)
        return stream.getvalue(), pickler.tensors

    def _number(self, tensor: Any) -> int:
        number = self._numbers.get(id(tensor))
        if number is None or self._canonical:
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return number


class _Pickler(pickle.Pickler):
    """Leaves tensors out; with `sort_sets`, writes sets in an order that does not depend on the process's hash seed."""

    def __init__(self, stream: io.BytesIO, is_tensor: Callable[[Any], bool], sort_sets: bool) -> None:
        super().__init__(stream, protocol=5)
        self.tensors: list[Any] = []
        self._is_tensor = is_tensor
        self._sort_sets = sort_sets

    def persistent_id(self, obj: Any) -> Any:
        if self._is_tensor(obj):
            self.tensors.append(obj)
            return len(self.tensors) - 1
        if self._sort_sets and (type(obj) is set or type(obj) is frozenset):
            try:
                return _pack(Encoder(_never, True).encode(obj))
            except UsageError:
                return None  # let pickle try, or say what is wrong
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[Any]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid] if isinstance(pid, int) else decode(_unpack(pid), _refuse)


def decode(node: Node, tensor: Callable[[int], Any], objects: bool = True) -> Any:
    """The value of `node`, with `tensor(number)` for each tensor; without `objects`, None for pickled ones."""
    if not isinstance(node, list):
        return node
    tag, *rest = node
    if tag == _TENSOR:
        return tensor(rest[0])
    if tag == _INT:
        return int(rest[0])
    if tag == _COMPLEX:
        return complex(*rest)
    if tag == _PICKLE and not objects:
        return None
    if tag == _PICKLE:
        return _Unpickler(io.BytesIO(rest[0]), [tensor(number) for number in rest[1]]).load()
    items = [decode(item, tensor, objects) for item in rest]
    if tag == _LIST:
        return items
    if tag == _TUPLE:
        return tuple(items)
    if tag == _SET:
        return set(items)
    if tag == _FROZEN:
        return frozenset(items)
    if tag in (_DICT, _ORDERED):
        pairs = zip(items[::2], items[1::2], strict=True)
        return dict(pairs) if tag == _DICT else OrderedDict(pairs)
    raise ValueError(f"unknown tag {tag!r} in replicated data")


def pack(node: Node) -> bytes:
    return _pack(node)


def unpack(data: bytes) -> Node:
    return _unpack(data)


def _never(value: Any) -> bool:
    return False


def _refuse(number: int) -> Any:
    raise ValueError("a set cannot hold a tensor")
