"""What a TensorFlow loop may do, and what it is told when it does something else, in a job of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import collections
import numpy as np
import keras
import tensorflow as tf
import elastic_launch as elastic
from elastic_launch.errors import UsageError

weight = tf.Variable([1.0, 2.0])
optimizer = keras.optimizers.SGD(1.0)
job = elastic.join(variables={"weight": weight}, optimizer=optimizer)
Pair = collections.namedtuple("Pair", "x y")
loader = job.loader(Pair(np.ones((4, 2), np.float32), np.arange(4)), global_batch=2)

@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * x)
    weight.assign_sub(job.average_gradients([tape.gradient(loss, weight)])[0])

train.get_concrete_function(tf.TensorSpec((2, 2)))  # ahead of the first block, when nobody waits for this worker
try:
    train(tf.ones((2, 2)))
except tf.errors.OpError as error:
    assert "with job.step()" in str(error), error
else:
    raise AssertionError("gradients were averaged outside of a block")

for epoch in job.epochs(1):
    for batch in loader:
        with job.step() as step:
            train(tf.constant(batch.x))
        assert step.committed
    assert job.allreduce(True, "sum") == 1.0 and job.allreduce(3, "mean") == 3.0
assert weight.numpy().tolist() == [-3.0, -2.0], weight

with job.step():
    job.average_gradients([tf.ones(2)])
    try:
        job.average_gradients([tf.ones(2)])
    except UsageError as error:
        assert "Split the block" in str(error)
    else:
        raise AssertionError("a step was agreed twice")

@tf.function
def alone(x):
    optimizer.apply_gradients([(x, weight)])

def refused(call):
    try:
        call()
    except UsageError as error:
        assert "have not agreed" in str(error), error
    else:
        raise AssertionError("an optimizer applied what nobody has agreed on")

before = weight.numpy().tolist()
refused(lambda: optimizer.apply_gradients([(tf.ones(2), weight)]))
with job.step():
    refused(lambda: optimizer.apply_gradients([(tf.ones(2), weight)]))
    refused(lambda: alone(tf.ones(2)))
assert weight.numpy().tolist() == before and optimizer.iterations.numpy() == 0

@tf.function
def together(x):
    optimizer.apply_gradients(zip(job.average_gradients([x]), [weight]))

with job.step():
    together(tf.ones(2))
with job.step():
    optimizer.apply_gradients(zip(job.average_gradients([tf.ones(2)]), [weight]))
assert weight.numpy().tolist() == [value - 2 for value in before], (before, weight)
"""


def test_a_loop_in_a_job_of_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
