"""What a worker's TF_CONFIG says."""

from __future__ import annotations

import json

from elastic_launch.trainer.tensorflow.place import tf_config


def test_the_configuration_names_all_workers_and_this_ones_place() -> None:
    assert json.loads(tf_config(["10.0.0.1:4000", "[fe80::1]:4001"], 1)) == {
        "cluster": {"worker": ["10.0.0.1:4000", "[fe80::1]:4001"]},
        "task": {"type": "worker", "index": 1},
    }
