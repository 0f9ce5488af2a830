"""Elastic Keras in the shape of Horovod's documentation: a distributed optimizer, callbacks, fit; on the bundled digits."""

import argparse
import sys

import horovod.tensorflow.keras as hvd
import journal
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--journal", default="")
parser.add_argument("--epochs", type=int, default=4)
arguments = parser.parse_args()
note = journal.Journal(arguments.journal)

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)

digits = load_digits()
images = (digits.images / 16).astype("float32")
targets = digits.target.astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((images, targets)).repeat().shuffle(2000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8, 8)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
base_rate = 0.002
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(base_rate * hvd.size()))
model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])


class Notes(tf.keras.callbacks.Callback):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None):
        note.write("step", rank=hvd.rank(), size=hvd.size(), total=self.state.epoch * 1000 + batch)
        note.hold("batch")

    def on_epoch_end(self, epoch, logs=None):
        note.write("epoch", rank=hvd.rank(), size=hvd.size(), epoch=self.state.epoch, **logs)


def on_state_reset():
    model.optimizer.learning_rate.assign(base_rate * hvd.size())
    note.write("reset", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch)


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])


@hvd.elastic.run
def train(state):
    note.write("entered", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch)
    callbacks = [
        hvd.callbacks.MetricAverageCallback(),
        Notes(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=5),
    ]
    if state.epoch == 0:
        callbacks += [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.LearningRateWarmupCallback(base_rate * hvd.size(), warmup_epochs=2, steps_per_epoch=20),
        ]
    model.fit(
        dataset, steps_per_epoch=60 // hvd.size(), epochs=arguments.epochs - state.epoch, callbacks=callbacks, verbose=0
    )


train(state)

loss, accuracy = model.evaluate(images, targets, verbose=0)
accuracy = float(hvd.allreduce(accuracy))
weights = sum(float(weight.numpy().sum(dtype="float64")) for weight in model.trainable_weights)
has_torch = "torch" in sys.modules
note.write(
    "end", rank=hvd.rank(), size=hvd.size(), total=state.epoch, accuracy=accuracy, weights=weights, torch=has_torch
)
