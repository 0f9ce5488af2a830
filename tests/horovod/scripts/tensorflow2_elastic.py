"""Elastic TensorFlow 2 in the shape of Horovod's documentation: a tape, a tf.function, a state; on the bundled digits."""

import argparse
import sys

import horovod.tensorflow as hvd
import journal
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--journal", default="")
parser.add_argument("--batches", type=int, default=150)
parser.add_argument("--open-ended", action="store_true")
arguments = parser.parse_args()
note = journal.Journal(arguments.journal)

hvd.init()
tf.random.set_seed(1)
tf.config.threading.set_intra_op_parallelism_threads(1)

digits = load_digits()
images = (digits.images / 16).astype("float32")
targets = digits.target.astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((images, targets)).repeat().shuffle(1000, seed=hvd.rank()).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8, 8)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
base_rate = 0.01
optimizer = tf.keras.optimizers.Adam(base_rate * hvd.size())


@tf.function
def training_step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@hvd.elastic.run
def train(state):
    note.write("entered", rank=hvd.rank(), size=hvd.size(), total=state.batch)
    for images, labels in dataset.skip(state.batch):
        if state.batch >= arguments.batches and not arguments.open_ended:
            return
        if arguments.open_ended and hvd.allreduce(float(note.has("finish")), op=hvd.Max, name="over") > 0:
            return
        loss = training_step(images, labels)
        state.batch += 1
        note.write("step", rank=hvd.rank(), size=hvd.size(), total=state.batch, loss=float(loss))
        if state.batch % 5 == 0:
            state.commit()


def on_state_reset():
    note.write("reset", rank=hvd.rank(), size=hvd.size())
    optimizer.learning_rate.assign(base_rate * hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)

accuracy = float(tf.reduce_mean(tf.cast(tf.argmax(model(images), 1) == targets, tf.float32)))
weights = sum(float(tf.reduce_sum(tf.cast(each, tf.float64))) for each in model.trainable_variables)
note.write(
    "end",
    rank=hvd.rank(),
    size=hvd.size(),
    total=state.batch,
    accuracy=accuracy,
    weights=weights,
    torch="torch" in sys.modules,
)
if hvd.rank() == 0:
    print(f"accuracy {accuracy:.3f}", flush=True)
