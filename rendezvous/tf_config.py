"""`TF_CONFIG`, by which TensorFlow's own strategies, and scripts, know their place among the workers."""

from __future__ import annotations

import json
from collections.abc import Sequence

TF_CONFIG = "TF_CONFIG"


def tf_config(addresses: Sequence[str], rank: int) -> str:
    """What the variable says to the worker of that rank. `addresses` are HOST:PORT of all workers, in rank order."""
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}})
