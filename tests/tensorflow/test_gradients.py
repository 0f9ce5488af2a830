"""TensorFlow's gradients over real rings of our own sockets, in eager code and inside of graphs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from elastic_launch.errors import RingError
from elastic_launch.trainer.ring.fusing import FusedSum
from elastic_launch.trainer.ring.gradients import sum_gradients
from elastic_launch.trainer.ring.tcp.ring import TcpRing
from tests.trainer.tcp_threads import in_threads, rings

__all__ = ["rings"]
Rings: TypeAlias = Callable[[int], list[TcpRing]]
tf: Any = None
gradients: Any = None
failures: Any = None


@pytest.fixture(scope="module", autouse=True)
def tensorflow() -> None:
    """Imported when the first test runs, which takes seconds, not by everybody who collects the tests."""
    global tf, gradients, failures
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    gradients = importlib.import_module("elastic_launch.trainer.tensorflow.gradients")
    failures = importlib.import_module("elastic_launch.trainer.tensorflow.failures")


def reducing(ring: TcpRing, weight: float = 1.0) -> Any:
    return lambda given, all_alike: sum_gradients(ring, given, weight, all_alike)


def loss_of(table: Any, matrix: Any, rows: list[int]) -> Any:
    return tf.reduce_sum(tf.matmul(tf.gather(table, rows), matrix))


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_of_all_kinds_are_averaged(rings: Rings, in_graph: bool) -> None:
    rows = [[0, 2, 2], [2, 5]]
    table, matrix, unused = tf.Variable(tf.ones((6, 3))), tf.Variable(tf.ones((3, 2))), tf.Variable(tf.ones(4))
    half = tf.cast([1.0, 2.0], tf.bfloat16)

    def whole(ring: TcpRing) -> Any:
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(table, matrix, rows[ring.rank])
            mine = tape.gradient(loss, {"table": table, "rest": [matrix, unused]})
            mine["half"] = half
            found = gradients.average_gradients(mine, reducing(ring, (0.25, 0.75)[ring.rank]))
            assert found["rest"][0].shape == (3, 2) and found["table"].values.shape[1:] == (3,)
            return found

        return (tf.function(step) if in_graph else step)()

    def alone(rank: int) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(table, matrix, rows[rank])
        return tape.gradient(loss, [table, matrix])

    for found in in_threads(whole, rings(2)):
        assert isinstance(found["table"], tf.IndexedSlices)
        assert found["table"].indices.dtype == tf.int32 and found["table"].dense_shape.numpy().tolist() == [6, 3]
        wanted_table, wanted_matrix = (
            0.25 * tf.convert_to_tensor(one).numpy() + 0.75 * tf.convert_to_tensor(other).numpy()
            for one, other in zip(alone(0), alone(1), strict=True)
        )
        np.testing.assert_allclose(tf.convert_to_tensor(found["table"]).numpy(), wanted_table)
        np.testing.assert_allclose(found["rest"][0].numpy(), wanted_matrix)
        assert found["rest"][1] is None
        assert found["half"].dtype == tf.bfloat16 and tf.cast(found["half"], tf.float32).numpy().tolist() == [1, 2]


def test_eagerly_a_member_may_lack_a_gradient_and_its_optimizer_gets_the_sum(rings: Rings) -> None:
    def call(ring: TcpRing) -> list[Any]:
        given = [tf.ones(3), None] if ring.rank == 0 else [None, tf.IndexedSlices(tf.ones((1, 2)), tf.constant([4]))]
        return list(gradients.average_gradients(given, reducing(ring)))

    for dense, table in in_threads(call, rings(2)):
        assert dense.numpy().tolist() == [1.0] * 3
        assert table.values.numpy().tolist() == [[1.0, 1.0]] and table.indices.numpy().tolist() == [4]


def test_a_graph_applies_sums_of_every_call_in_order(rings: Rings) -> None:
    """Two models in one step, as GANs have; the ring and the weight are those of the moment, not of the tracing."""

    def call(ring: TcpRing) -> list[float]:
        weight = 1.0
        first, second = tf.Variable([0.0]), tf.Variable(tf.zeros((200, 200)))

        @tf.function
        def step(x: Any) -> None:
            def reduce(given: list[Any], all_alike: bool) -> list[Any]:
                return sum_gradients(ring, given, weight, all_alike)

            (large,) = gradients.average_gradients([x * tf.ones((200, 200))], reduce)
            second.assign_sub(large)
            first.assign_sub(gradients.average_gradients(x, reduce))

        step(tf.constant([1.0 + ring.rank]))
        weight = 0.5
        step(tf.constant([1.0 + ring.rank]))
        return [float(first[0]), float(second[199, 199])]

    assert in_threads(call, rings(2)) == [[-4.5, -4.5]] * 2


@pytest.mark.parametrize("kind", [RingError, KeyboardInterrupt])
def test_what_was_raised_inside_of_a_graph_is_found_again_and_nothing_is_applied(kind: type[BaseException]) -> None:
    raised = kind("rank 1 is gone")

    def reduce(given: list[Any], all_alike: bool) -> list[Any]:
        raise raised

    variable = tf.Variable([1.0])

    @tf.function
    def step() -> None:
        variable.assign(gradients.average_gradients(variable * 2.0, reduce))

    with pytest.raises(tf.errors.UnknownError) as error:
        step()
    assert failures.original(error.value) is raised
    assert failures.original(error.value) is error.value
    assert failures.original(raised) is raised
    assert variable.numpy().tolist() == [1.0]
    with pytest.raises(kind, match="rank 1 is gone"):
        gradients.average_gradients(tf.constant([1.0]), reduce)


def test_torch_sums_tensors_where_they_are(rings: Rings) -> None:
    """As it does on a GPU, but for the device, and NCCL."""
    pytest.importorskip("torch", reason="needs torch")
    on_gpu = importlib.import_module("elastic_launch.trainer.tensorflow.on_gpu")

    class TorchRing:
        def __init__(self, ring: TcpRing) -> None:
            self.ring = ring
            self.works: list[Any] = []

        def start_sum(self, tensor: Any) -> None:
            self.works.append(self.ring.start_allreduce(tensor))

        def settle_reductions(self) -> None:
            for work in self.works:
                work.wait(30)

    def call(ring: TcpRing) -> Any:
        weight = (0.0, 0.5)[ring.rank]

        def reduce(given: list[Any], all_alike: bool) -> list[Any]:
            return sum_gradients(ring, given, weight, all_alike, on_gpu.GpuSums(TorchRing(ring), weight, 1000, "CPU:0"))

        value = (float("nan"), 4.0)[ring.rank]
        table = tf.IndexedSlices(tf.fill((1, 2), value), tf.constant([ring.rank]))
        shapes = ((3, 4), (), (0, 2), (500,), (7,))
        given = [tf.fill(shape, value) for shape in shapes] + [table, None, tf.cast(tf.fill(3, value), tf.bfloat16)]
        before = [each.numpy().copy() for each in given[:5]]
        found = gradients.average_gradients(given, reduce, takes_gpu_tensors=True)
        assert [each.shape for each in found[:5]] == [*shapes]
        for each, old in zip(given, before, strict=False):
            np.testing.assert_array_equal(each.numpy(), old)
        assert found[5].indices.numpy().tolist() == [1] and found[6] is None
        found[5] = found[5].values
        return [tf.cast(each, tf.float32).numpy().ravel().tolist() for each in found if each is not None]

    wanted = [[2.0] * 12, [2.0], [], [2.0] * 500, [2.0] * 7, [2.0, 2.0], [2.0] * 3]
    assert in_threads(call, rings(2)) == [wanted] * 2


def test_the_sum_of_rows_may_be_a_tensor(rings: Rings) -> None:
    """As it is where the sums are made on a GPU."""

    class Tensors(FusedSum):
        def finish(self) -> list[Any]:
            return [tf.constant(each) for each in super().finish()]

    def call(ring: TcpRing) -> list[Any]:
        rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([5, 1, 2]))
        return list(
            gradients.average_gradients(
                [rows], lambda given, alike: sum_gradients(ring, given, 1.0, alike, Tensors(ring, 1.0))
            )
        )

    for (found,) in in_threads(call, rings(3)):
        assert found.indices.numpy().tolist() == [1, 2, 5] and found.values.numpy().tolist() == [[3, 3]] * 3
