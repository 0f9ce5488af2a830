"""PyTorch that knows of no change, and begins from its own checkpoint."""

import argparse
import os
import time

import horovod.torch as hvd
import journal
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--journal", default="")
parser.add_argument("--steps", type=int, default=400)
arguments = parser.parse_args()
note = journal.Journal(arguments.journal)
checkpoint = os.path.join(arguments.journal, "checkpoint.pt")

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    step = saved["step"]
step = hvd.broadcast_object(step)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
note.write("entered", rank=hvd.rank(), size=hvd.size(), total=step)
while step < arguments.steps and not hvd.allreduce(torch.tensor(float(note.has("finish"))), op=hvd.Max) > 0:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    step += 1
    time.sleep(0.01)
    note.write("step", rank=hvd.rank(), size=hvd.size(), total=step)
    if hvd.rank() == 0 and step % 10 == 0:
        torch.save({"model": model.state_dict(), "step": step}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
note.write("end", rank=hvd.rank(), size=hvd.size(), total=step, weights=float(model.weight.detach().sum()))
