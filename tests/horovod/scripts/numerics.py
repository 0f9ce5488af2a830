"""Every collective of both faces against numpy, in worlds of 3, 2 and 1: the last rank kills itself between two of them."""

import os
import signal
import sys
import time
import traceback

import journal

note = journal.Journal(sys.argv[sys.argv.index("--journal") + 1])
if note.has("begun"):  # in the place of one that has killed itself: it is not wanted
    sys.exit()

import horovod.keras as khvd  # noqa: E402
import horovod.tensorflow as thvd  # noqa: E402
import horovod.torch as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import torch  # noqa: E402

hvd.init()
OPERATIONS = {
    hvd.Sum: lambda all: all.sum(0),
    hvd.Average: lambda all: all.mean(0),
    hvd.Min: lambda all: all.min(0),
    hvd.Max: lambda all: all.max(0),
    hvd.Product: lambda all: all.prod(0),
}


def of_rank(rank, shape, dtype="float32", seed=0):
    generator = np.random.default_rng(100 * seed + rank)
    if np.dtype(dtype).kind == "f":
        return generator.normal(size=shape).astype(dtype)
    return generator.integers(1, 4, size=shape).astype(dtype)


def of_all(shape, dtype="float32", seed=0):
    return np.stack([of_rank(rank, shape, dtype, seed) for rank in range(hvd.size())])


def close(found, expected, tolerance=1e-6):
    array = found.detach().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    assert array.shape == np.shape(expected), (array.shape, np.shape(expected))
    np.testing.assert_allclose(
        array.astype(np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
    )


def check_reductions():
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12), ("float16", 2e-3), ("int32", 0), ("int64", 0)):
        for op, expected in OPERATIONS.items():
            mine, everybodys = of_rank(hvd.rank(), (3, 5), dtype), of_all((3, 5), dtype)
            wanted = expected(everybodys.astype(np.float64))
            if np.dtype(dtype).kind == "i":
                wanted = np.trunc(wanted)
            close(hvd.allreduce(torch.tensor(mine), op=op), wanted, tolerance)
            close(thvd.allreduce(tf.constant(mine), op=op), wanted, tolerance)
            in_place = torch.tensor(mine)
            assert hvd.allreduce_(in_place, op=op) is in_place
            close(in_place, wanted, tolerance)
    halves = torch.tensor(of_rank(hvd.rank(), 7)).bfloat16()
    wanted = np.stack([torch.tensor(of_rank(rank, 7)).bfloat16().float().numpy() for rank in range(hvd.size())]).sum(0)
    close(hvd.allreduce(halves, op=hvd.Sum).float(), wanted, 2e-2)
    close(tf.cast(thvd.allreduce(tf.cast(halves.float().numpy(), tf.bfloat16), op=thvd.Sum), tf.float32), wanted, 2e-2)
    mine, everybodys = of_rank(hvd.rank(), (4,)), of_all((4,))
    scaled = hvd.allreduce(torch.tensor(mine), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    close(scaled, everybodys.sum(0) * 1.5)
    close(thvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), everybodys.sum(0) * 1.5)
    close(hvd.allreduce(torch.tensor(mine), average=False), everybodys.sum(0))
    close(hvd.allreduce(torch.tensor(mine), compression=hvd.Compression.fp16), everybodys.mean(0), 2e-3)
    close(hvd.allreduce(torch.tensor(float(hvd.rank()))), (hvd.size() - 1) / 2)
    close(hvd.allreduce(torch.zeros(0)), np.zeros(0))
    not_contiguous = torch.tensor(of_rank(hvd.rank(), (4, 3))).t()
    close(hvd.allreduce(not_contiguous, op=hvd.Sum), of_all((4, 3)).sum(0).T)
    hvd.allreduce_(not_contiguous, op=hvd.Sum)
    close(not_contiguous, of_all((4, 3)).sum(0).T)
    close(khvd.allreduce(float(hvd.rank())), (hvd.size() - 1) / 2)
    big = of_rank(hvd.rank(), 3_000_000)
    close(hvd.allreduce(torch.tensor(big), op=hvd.Sum), of_all(3_000_000).sum(0), 1e-5)


def check_groups_and_handles():
    mine = [of_rank(hvd.rank(), (2 + index,), seed=index) for index in range(4)]
    wanted = [of_all((2 + index,), seed=index).sum(0) for index in range(4)]
    tensors = [torch.tensor(each) for each in mine]
    for found in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=hvd.Sum, name="group")),
        thvd.grouped_allreduce(mine, op=hvd.Sum),
        hvd.grouped_allreduce_([tensor.clone() for tensor in tensors], op=hvd.Sum),
    ):
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
    order = [0, 1, 2, 3] if hvd.rank() % 2 else [3, 2, 1, 0]  # members that ask in different orders, by name
    handles = {index: hvd.allreduce_async(tensors[index], op=hvd.Sum, name=f"any.{index}") for index in order}
    for index in range(4):
        close(hvd.synchronize(handles[index]), wanted[index])
        assert hvd.poll(handles[index])


def check_gathers():
    rows = [rank + 1 for rank in range(hvd.size())]
    mine = of_rank(hvd.rank(), (rows[hvd.rank()], 2))
    wanted = np.concatenate([of_rank(rank, (rows[rank], 2)) for rank in range(hvd.size())])
    close(hvd.allgather(torch.tensor(mine)), wanted)
    close(thvd.allgather(mine), wanted)
    close(khvd.allgather(mine), wanted)
    for found in (hvd.grouped_allgather([torch.tensor(mine)] * 2), thvd.grouped_allgather([mine] * 2)):
        assert len(found) == 2
        close(found[1], wanted)
    halves = torch.arange(hvd.rank() + 1).bfloat16()
    close(hvd.allgather(halves).float(), np.concatenate([np.arange(rank + 1) for rank in range(hvd.size())]))
    close(hvd.allgather(torch.zeros(0, 3)), np.zeros((0, 3)))
    assert hvd.allgather_object({"rank": hvd.rank()}) == [{"rank": rank} for rank in range(hvd.size())]
    assert thvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def check_broadcasts():
    root = hvd.size() - 1
    mine, wanted = of_rank(hvd.rank(), (3, 2)), of_rank(root, (3, 2))
    close(hvd.broadcast(torch.tensor(mine), root), wanted)
    close(thvd.broadcast(mine, root), wanted)
    in_place = torch.tensor(mine)
    hvd.synchronize(hvd.broadcast_async_(in_place, root, name="b"))
    close(in_place, wanted)
    variable = tf.Variable(mine)
    thvd.broadcast_variables([variable], root)
    close(variable, wanted)
    assert hvd.broadcast_object(["of", hvd.rank()], root) == ["of", root]
    assert thvd.broadcast_object(("of", hvd.rank()), root) == ("of", root)


def check_exchanges():
    size, rank = hvd.size(), hvd.rank()
    splits = [(rank + to) % 3 for to in range(size)]
    mine = np.stack(
        [np.array([rank, to], np.float32) for to in range(size) for _ in range(splits[to])] or [np.zeros(2)]
    )
    mine = mine[: sum(splits)].astype(np.float32)
    wanted = [[source, rank] for source in range(size) for _ in range((source + rank) % 3)]
    received = [(source + rank) % 3 for source in range(size)]
    for found, counts in (hvd.alltoall(torch.tensor(mine), torch.tensor(splits)), thvd.alltoall(mine, splits)):
        close(found, np.array(wanted, np.float32).reshape(-1, 2))
        assert list(np.asarray(counts)) == received
    equal = np.arange(size * 2, dtype=np.float32) + 100 * rank
    wanted = np.concatenate([np.arange(2) + rank * 2 + 100 * source for source in range(size)])
    close(hvd.alltoall(torch.tensor(equal)), wanted)
    close(thvd.alltoall(equal), wanted)


def check_scatters():
    size, rank = hvd.size(), hvd.rank()
    mine, everybodys = of_rank(rank, (4, 2)), of_all((4, 2))
    parts = np.array_split(everybodys.sum(0), size)
    close(hvd.reducescatter(torch.tensor(mine), op=hvd.Sum), parts[rank])
    close(thvd.reducescatter(mine, op=hvd.Sum), parts[rank])
    close(hvd.reducescatter(torch.tensor(mine), prescale_factor=2.0), parts[rank] * 2 / size)
    close(hvd.grouped_reducescatter([torch.tensor(mine)] * 2, op=hvd.Sum)[1], parts[rank])
    close(thvd.grouped_reducescatter([mine], op=hvd.Sum)[0], parts[rank])


def check_gradients():
    size, rank = hvd.size(), hvd.rank()

    def gradient(function, value):
        given = torch.tensor(value, requires_grad=True)
        (function(given) * (rank + 1)).sum().backward()
        return given.grad

    mine = of_rank(rank, (size,))
    ranks = sum(range(1, size + 1))
    cases = (
        (lambda h, x: h.allreduce(x, op=hvd.Sum), np.full(size, ranks)),
        (lambda h, x: h.allreduce(x), np.full(size, ranks / size)),
        (lambda h, x: h.allgather(x), np.full(size, ranks / size)),
        (lambda h, x: h.broadcast(x, 0), np.full(size, ranks / size if rank == 0 else 0)),
        (lambda h, x: h.alltoall(x), np.arange(1, size + 1)),
        (lambda h, x: h.reducescatter(x, op=hvd.Sum), np.arange(1, size + 1) * size),
    )
    for function, wanted in cases:
        close(gradient(lambda given, f=function: f(hvd, given), mine), wanted)

        @tf.function
        def traced(value, f=function):
            with tf.GradientTape() as tape:
                tape.watch(value)
                total = tf.reduce_sum(f(thvd, value)) * (rank + 1)
            return tape.gradient(total, value)

        close(traced(tf.constant(mine)), wanted)


def check_sparse():
    size, rank = hvd.size(), hvd.rank()
    sparse = torch.sparse_coo_tensor([[0, rank]], [[1.0, 2.0], [3.0, 4.0]], (4, 2))
    dense = sum(torch.sparse_coo_tensor([[0, r]], [[1.0, 2.0], [3.0, 4.0]], (4, 2)).to_dense() for r in range(size))
    close(hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average)().to_dense(), dense.numpy() / size)
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([0, rank]), tf.constant([4, 2]))
    close(tf.convert_to_tensor(thvd.allreduce(slices)), dense.numpy() / size)


def check_join():
    """The last rank goes on for longest: the others give zeros to its reductions."""
    size, rank = hvd.size(), hvd.rank()
    for step in range(rank + 1):
        found = hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"uneven.{step}")
        close(found, np.full(2, size - step))
    assert hvd.join() == size - 1
    hvd.barrier()
    close(hvd.allreduce(torch.ones(1), op=hvd.Sum), [size])


def check_batch_norm():
    size, rank = hvd.size(), hvd.rank()
    torch.manual_seed(0)
    whole = torch.randn(6, 3, 4) * 2 + 1
    ends = np.linspace(0, 6, size + 1).astype(int)
    mine = slice(ends[rank], ends[rank + 1])
    expected, ours = torch.nn.BatchNorm1d(3), hvd.SyncBatchNorm(3)
    together = whole.clone().requires_grad_()
    expected(together).square().mul(torch.arange(4)).sum().backward()
    part = whole[mine].clone().requires_grad_()
    ours(part).square().mul(torch.arange(4)).sum().backward()
    close(part.grad, together.grad[mine].numpy(), 1e-4)
    close(ours.running_var, expected.running_var.numpy(), 1e-5)
    layer = thvd.SyncBatchNormalization(axis=1)
    close(layer(tf.constant(whole[mine].numpy()), training=True), expected(whole).detach().numpy()[mine], 1e-2)


def gradients_of(rank):
    """Of a table of 4 rows and a vector, of which rank 0 has no gradient in the vector."""
    generator = np.random.default_rng(rank)
    rows = np.array([rank % 4, 3])
    return (
        rows,
        generator.normal(size=(2, 2)).astype(np.float32),
        generator.normal(size=3).astype(np.float32) * (rank > 0),
    )


def expected_steps(rate, passes, steps):
    """SGD with everybody's gradients, averaged over the members and summed over the passes."""
    table, vector = np.ones((4, 2), np.float64), np.ones(3, np.float64)
    for _ in range(steps):
        for rank in range(hvd.size()):
            rows, of_rows, of_vector = gradients_of(rank)
            np.subtract.at(table, rows, rate * passes * of_rows.astype(np.float64) / hvd.size())
            vector -= rate * passes * of_vector / hvd.size()
    return table, vector


def check_torch_optimizer():
    rows, of_rows, of_vector = (torch.tensor(each) for each in gradients_of(hvd.rank()))
    for options in (
        {},
        {"sparse_as_dense": True},
        {"backward_passes_per_step": 2},
        {"groups": 1, "sparse_as_dense": True},
        {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
    ):
        passes = options.get("backward_passes_per_step", 1)
        table = torch.nn.Embedding(4, 2, sparse=True, _weight=torch.ones(4, 2))
        vector = torch.nn.Parameter(torch.ones(3))
        plain = torch.optim.SGD([table.weight, vector], lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(plain, lambda epoch: 0.1)
        named = [("table", table.weight), ("vector", vector)]
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=named, **options)
        assert isinstance(optimizer, torch.optim.SGD)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                loss = (table(rows) * of_rows).sum()
                if hvd.rank() > 0:  # rank 0 has no gradient of it
                    loss = loss + (vector * of_vector).sum()
                loss.backward()
                if passes == 1:
                    try:
                        optimizer.zero_grad()
                    except AssertionError as error:
                        assert "being reduced" in str(error)
                    else:
                        raise AssertionError("gradients that are being reduced can be zeroed")
            optimizer.step()
            scheduler.step()
        wanted_table, wanted_vector = expected_steps(0.1, passes, 3)
        close(table.weight, wanted_table, 1e-5)
        close(vector, wanted_vector, 1e-5)


def check_keras_optimizer():
    rows, of_rows, of_vector = gradients_of(hvd.rank())
    for options in ({}, {"sparse_as_dense": True}, {"backward_passes_per_step": 2}):
        passes = options.get("backward_passes_per_step", 1)
        table, vector = tf.Variable(tf.ones((4, 2))), tf.Variable(tf.ones(3))
        optimizer = thvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), **options)
        optimizer.build([table, vector])

        @tf.function
        def step(optimizer=optimizer, table=table, vector=vector):
            slices = tf.IndexedSlices(tf.constant(of_rows), tf.constant(rows), tf.constant([4, 2]))
            optimizer.apply_gradients([(slices, table), (tf.constant(of_vector), vector)])

        for _ in range(3 * passes):
            step()
        wanted_table, wanted_vector = expected_steps(0.1, passes, 3)
        close(table, wanted_table, 1e-5)
        close(vector, wanted_vector, 1e-5)
        assert int(optimizer.iterations) == 3


def check_keras_model():
    """It is saved with its optimizer, and loaded with one that reduces; what is local stays each worker's own."""
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1, name=f"dense_{hvd.rank()}")])
    model.compile(optimizer=khvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.5)), loss="mse")
    model.fit(np.ones((4, 3), np.float32), np.ones(4, np.float32), verbose=0)
    path = os.path.join(note.folder, f"model-{hvd.rank()}-{hvd.size()}.keras")
    model.save(path)
    loaded = khvd.load_model(path)
    assert "distributed already" in str(refusal_of(lambda: khvd.DistributedOptimizer(loaded.optimizer)))
    close(loaded.optimizer.variables[-1], model.optimizer.variables[-1].numpy())
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * float(hvd.rank())
    tape = thvd.DistributedGradientTape(tape)
    tape.register_local_source(variable)
    close(tape.gradient(loss, [variable])[0], hvd.rank() / hvd.size())
    rates = []

    class Rates(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(model.optimizer.learning_rate))

    warmup = khvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, steps_per_epoch=2)
    schedule = khvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2)
    model.fit(
        np.ones((4, 3), np.float32),
        np.ones(4, np.float32),
        2,
        epochs=4,
        verbose=0,
        callbacks=[warmup, schedule, Rates()],
    )
    size = hvd.size()
    wanted = [0.1 / size * ((epoch + 0.5) * (size - 1) / 2 + 1) for epoch in (0.0, 0.5, 1.0, 1.5)]
    close(rates, [*wanted, 0.1, 0.1, 0.05, 0.05], 1e-5)


def refusal_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("not refused")


def check_refusals():
    def refused(call, kind, words):
        try:
            call()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"not refused: {words}")

    refused(lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum), NotImplementedError, "Adasum")
    refused(lambda: hvd.allgather(torch.tensor(1.0)), ValueError, "first dimension")
    refused(lambda: hvd.broadcast(torch.ones(1), hvd.size()), ValueError, "root_rank")
    refused(lambda: hvd.add_process_set([0, 99]), NotImplementedError, "process sets")
    if hvd.size() > 1:
        shape = 3 if hvd.rank() else 2
        refused(lambda: hvd.allreduce(torch.ones(shape), name="odd"), ValueError, "different shapes")
    hvd.barrier()


@hvd.elastic.run
def check_all(state):
    while not state.began and hvd.size() < 3:
        state.check_host_updates()
        time.sleep(0.05)
    state.began = True
    state.save()
    open(os.path.join(note.folder, "begun"), "w").close()
    size = hvd.size()
    try:
        for check in [value for name, value in globals().items() if name.startswith("check_") and name != "check_all"]:
            check()
    except hvd.HorovodInternalError:
        raise
    except BaseException:
        traceback.print_exc()
        note.write("wrong", size=size, what=traceback.format_exc())
        raise
    note.write("checked", size=size, rank=hvd.rank())
    hvd.barrier()
    if size > 1:
        if hvd.rank() == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.barrier()


check_all(hvd.elastic.TorchState(began=False))
