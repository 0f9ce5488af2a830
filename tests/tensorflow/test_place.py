"""What a worker's TF_CONFIG says, to TensorFlow itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from elastic_launch.rendezvous.tf_config import tf_config
from elastic_launch.trainer.place import keep_current
from elastic_launch.trainer.ring.tcp.ring import TcpRing
from tests.trainer.tcp_threads import in_threads, rings

__all__ = ["rings"]


def test_tensorflow_reads_all_workers_and_this_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    workers = ["10.0.0.1:4000", "[fe80::1]:4001"]
    monkeypatch.setenv("TF_CONFIG", tf_config(workers, 1))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == {"worker": workers}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


def test_the_members_of_a_ring_tell_each_other_their_addresses(
    rings: Callable[[int], list[TcpRing]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "of an earlier ring")
    in_threads(lambda ring: keep_current(ring, f"host:{ring.rank}"), rings(2))
    told = json.loads(os.environ["TF_CONFIG"])  # the members share it here, so it is that of the last one
    assert told["cluster"] == {"worker": ["host:0", "host:1"]} and told["task"]["index"] in (0, 1)
    in_threads(lambda ring: keep_current(ring, "[::1]:7"), rings(1))
    assert os.environ["TF_CONFIG"] == tf_config(["[::1]:7"], 0)
