"""Elastic PyTorch in the shape of Horovod's documentation: a state, a decorated function, commits; on the bundled digits."""

import argparse
import time

import horovod.torch as hvd
import journal
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--journal", default="")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--open-ended", action="store_true")
parser.add_argument("--commit-every", type=int, default=1)
arguments = parser.parse_args()


note = journal.Journal(arguments.journal)

hvd.init()
torch.manual_seed(1)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 16
dataset = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
base_rate = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=base_rate * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=arguments.batch, sampler=sampler)


def is_over():
    """Where a test says when the end is to come, all members see it at the same point."""
    if not arguments.open_ended:
        return False
    return bool(hvd.allreduce(torch.tensor(float(note.has("finish"))), op=hvd.Max, name="is_over") > 0)


@hvd.elastic.run
def train(state):
    note.write("entered", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, batch=state.batch, total=state.total)
    while state.epoch < arguments.epochs and not is_over():
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            sampler.record_batch(state.batch, arguments.batch)
            state.batch += 1
            state.total += 1
            if arguments.pause:
                time.sleep(arguments.pause)
            note.write("step", rank=hvd.rank(), size=hvd.size(), total=state.total, loss=loss.item())
            if state.total % arguments.commit_every == 0:
                state.commit()
        state.epoch += 1
        state.batch = 0
        sampler.set_epoch(state.epoch)
        state.commit()


def on_state_reset():
    note.write("reset", rank=hvd.rank(), size=hvd.size())
    note.hold("reset")
    for group in optimizer.param_groups:
        group["lr"] = base_rate * hvd.size()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, total=0)
state.register_reset_callbacks([on_state_reset])
train(state)

with torch.no_grad():
    accuracy = (model(images).argmax(1) == torch.tensor(digits.target)).float().mean()
accuracy = hvd.allreduce(accuracy, name="accuracy").item()
weights = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
note.write("end", rank=hvd.rank(), size=hvd.size(), total=state.total, accuracy=accuracy, weights=weights)
if hvd.rank() == 0:
    print(f"accuracy {accuracy:.3f}", flush=True)
