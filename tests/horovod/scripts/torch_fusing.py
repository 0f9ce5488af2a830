"""Many small reductions at once, of which as many as the fusion limit allows are made as one."""

import horovod.torch as hvd
import torch

hvd.init()
for _ in range(5):
    sums = hvd.grouped_allreduce([torch.full((100,), float(number)) for number in range(200)], op=hvd.Sum)
    assert all(torch.equal(each, torch.full((100,), 2.0 * number)) for number, each in enumerate(sums))
