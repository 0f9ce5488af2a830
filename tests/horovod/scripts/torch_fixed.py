"""PyTorch of a fixed size in the shape of Horovod's documentation: init, broadcast, train, end."""

import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

hvd.init()
torch.manual_seed(hvd.rank())  # the broadcast is what makes them alike

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 16
targets = torch.tensor(digits.target)
dataset = torch.utils.data.TensorDataset(images, targets)
sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=2,
)

for epoch in range(4):
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        half = len(data) // 2
        for part in (slice(None, half), slice(half, None)):
            (F.cross_entropy(model(data[part]), target[part]) / 2).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    scheduler.step()

with torch.no_grad():
    accuracy = hvd.allreduce((model(images).argmax(1) == targets).float().mean(), name="accuracy").item()
weights = hvd.allgather(torch.cat([p.detach().reshape(1, -1) for p in model.parameters()], 1).double().sum(1))
assert len(set(weights.tolist())) == 1, weights
assert "tensorflow" not in sys.modules
rates = {group["lr"] for group in optimizer.param_groups}
if hvd.rank() == 0:
    print(f"size {hvd.size()} accuracy {accuracy:.3f} rates {rates}", flush=True)
