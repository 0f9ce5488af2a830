"""Any Python object as bytes: by cloudpickle where it is installed, which knows functions and classes of scripts too."""

from __future__ import annotations

import importlib
import pickle
from typing import Any


def to_bytes(value: Any) -> bytes:
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    data: bytes = pickler.dumps(value)
    return data


def from_bytes(data: bytes) -> Any:
    """Only of members of the same ring, who had to know its secret."""
    return pickle.loads(data)
