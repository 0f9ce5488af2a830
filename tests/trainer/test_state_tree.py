"""Nested data survives the way through plain bytes, and equal data gives equal bytes to hash, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launch.errors import UsageError
from elastic_launch.trainer.state.tree import Encoder, decode, pack, unpack


class Marker:
    """Stands for a tensor."""


def is_marker(value: Any) -> bool:
    return isinstance(value, Marker)


def round_trip(value: Any, canonical: bool = False) -> Any:
    encoder = Encoder(is_marker, canonical)
    node = unpack(pack(encoder.encode(value)))
    return decode(node, encoder.tensors.__getitem__)


def canonical_bytes(value: Any) -> bytes:
    return pack(Encoder(is_marker, canonical=True).encode(value))


keys = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.tuples(st.integers())
leaves = (
    keys
    | st.floats(allow_nan=False)
    | st.binary(max_size=4)
    | st.complex_numbers(allow_nan=False)
    | st.frozensets(keys)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
        | st.lists(inner, max_size=4).map(deque)
    ),
    max_leaves=20,
)


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value), [types_of(item) for item in value]
    return type(value)


@given(trees)
def test_data_survives_the_round_trip_with_its_types_and_order(value: Any) -> None:
    assert round_trip(value) == value
    assert types_of(round_trip(value)) == types_of(value)


@given(trees)
def test_data_that_went_through_a_copy_hashes_as_before(value: Any) -> None:
    assert canonical_bytes(round_trip(value)) == canonical_bytes(value)


@given(st.dictionaries(keys, leaves, max_size=6))
def test_order_of_keys_does_not_count_in_hashes(value: dict[Any, Any]) -> None:
    assert canonical_bytes(dict(reversed(value.items()))) == canonical_bytes(value)


def test_tensors_are_left_out_also_inside_objects() -> None:
    one, two = Marker(), Marker()
    encoder = Encoder(is_marker)
    node = encoder.encode({"a": one, "b": deque([two, one]), "c": [one]})
    assert encoder.tensors == [one, two]
    assert decode(node, "xyz".__getitem__) == {"a": "x", "b": deque(["y", "x"]), "c": ["x"]}
    assert decode(node, "xyz".__getitem__, objects=False)["b"] is None


def test_sharing_inside_an_object_survives() -> None:
    shared = [1]
    copied = round_trip(deque([shared, shared]))
    copied[0].append(2)
    assert copied[1] == [1, 2]


def test_object_that_contains_itself_survives() -> None:
    knot: deque[Any] = deque()
    knot.append(knot)
    copied = round_trip(knot)
    assert copied[0] is copied
    assert canonical_bytes(knot)


def test_what_does_not_pickle_is_named_with_its_path() -> None:
    with pytest.raises(UsageError, match=r"state\.hooks\[1\] of type function cannot be replicated"):
        Encoder(is_marker).encode({"hooks": [1, lambda: None]}, "state")


def test_hashes_do_not_depend_on_the_process() -> None:
    program = (
        "from collections import deque\n"
        "from elastic_launch.trainer.state.tree import Encoder, pack\n"
        "words = {'some', 'words', 'in', 'a', 'set', 'whose', 'order', 'differs'}\n"
        "print(pack(Encoder(lambda value: False, canonical=True).encode([words, deque([words])])).hex())\n"
    )
    found = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
