"""Small trainings of every kind whose state must be replicated, for tests that copy one onto another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from elastic_launch.trainer.pytorch.state.replica import TorchReplica
from elastic_launch.trainer.state.replica import Image, Incoming


class Trainee:
    """A replica and how it is trained. The data of step k is the same for every trainee."""

    def __init__(self) -> None:
        self.replica = TorchReplica()
        self.model: nn.Module = nn.Identity()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.scaler: torch.amp.GradScaler | None = None
        self.inputs = 6
        self.dtype = torch.float32
        self.device = "cpu"
        self.loss: Callable[[torch.Tensor], torch.Tensor] = lambda output: output.float().square().mean()
        self.after: Callable[[float], None] = lambda loss: None

    def train(self, first: int, count: int) -> list[float]:
        """Steps `first` to `first + count - 1`; their losses."""
        return [self._step(step) for step in range(first, first + count)]

    def _step(self, step: int) -> float:
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(8, self.inputs, generator=generator).to(self.device, self.dtype)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(self.model(batch))
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        else:
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        self.after(loss.item())
        return loss.item()


class Network(nn.Module):
    """With batch norm, tied weights, frozen parameters and one that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = self.tied(self.second(x).relu())
        return self.last(self.frozen(x).tanh())


Builder = Callable[[], Trainee]


def with_optimizer(make: Callable[[Any], torch.optim.Optimizer]) -> Builder:
    def build() -> Trainee:
        trainee = Trainee()
        trainee.model = Network()
        trainee.optimizers = [make(trainee.model.parameters())]
        _register(trainee)
        return trainee

    return build


def with_scheduler(make: Callable[[torch.optim.Optimizer], Any], lr: Any = 0.1) -> Builder:
    def build() -> Trainee:
        trainee = Trainee()
        trainee.model = Network()
        optimizer = torch.optim.Adam(trainee.model.parameters(), lr=lr() if callable(lr) else lr, foreach=False)
        trainee.optimizers = [optimizer]
        trainee.schedulers = [make(optimizer)]
        _register(trainee)
        return trainee

    return build


def two_optimizers() -> Trainee:
    trainee = Trainee()
    trainee.model = Network()
    parameters = [p for p in trainee.model.parameters() if p.requires_grad]
    trainee.optimizers = [
        torch.optim.SGD([{"params": parameters[:3], "lr": 0.2}, {"params": parameters[3:5]}], lr=0.1, momentum=0.8),
        torch.optim.AdamW(parameters[5:], lr=0.01, amsgrad=True),
    ]
    trainee.schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in trainee.optimizers]
    _register(trainee)
    return trainee


def scaled() -> Trainee:
    """The scale grows every second step, and a step whose gradients overflow is skipped."""
    trainee = Trainee()
    trainee.model = Network()
    trainee.optimizers = [torch.optim.SGD(trainee.model.parameters(), lr=0.01, momentum=0.9)]
    trainee.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124, growth_interval=4)
    trainee.loss = lambda output: 64 * output.square().mean()
    _register(trainee)
    return trainee


def bfloat16() -> Trainee:
    trainee = Trainee()
    trainee.model = Network().to(torch.bfloat16)
    trainee.dtype = torch.bfloat16
    trainee.optimizers = [torch.optim.AdamW(trainee.model.parameters(), lr=0.01)]
    _register(trainee)
    return trainee


def sync_batch_norm() -> Trainee:
    """Evaluated, not trained, in one process: its buffers are changed by hand."""
    trainee = Trainee()
    model = nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4), nn.Linear(4, 2))
    model[1].eval()
    trainee.model = model
    trainee.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]

    def count(loss: float) -> None:
        model[1].running_mean.add_(loss)
        model[1].num_batches_tracked.add_(1)

    trainee.after = count
    _register(trainee)
    return trainee


def channels_last() -> Trainee:
    trainee = Trainee()
    trainee.inputs = 3 * 5 * 5
    trainee.model = nn.Sequential(nn.Unflatten(1, (3, 5, 5)), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    trainee.model = trainee.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainee.optimizers = [torch.optim.Adam(trainee.model.parameters(), lr=0.01)]
    _register(trainee)
    return trainee


class BestLoss:
    """A user's object: plain data, tensors, and things that need pickle."""

    def __init__(self) -> None:
        self.best = float("inf")
        self.mean = torch.zeros((), dtype=torch.float64)
        self.history: list[tuple[int, float]] = []
        self.names = {"b", "a", "c"}

    def see(self, loss: float) -> None:
        self.best = min(self.best, loss)
        self.mean += loss
        self.history.append((len(self.history), loss))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "mean": self.mean, "more": {1: (self.history, self.names)}, "big": 1 << 80}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["big"] == 1 << 80
        self.best = state["best"]
        self.mean = state["mean"]
        self.history, self.names = state["more"][1]


def users_object() -> Trainee:
    trainee = Trainee()
    trainee.model = Network()
    trainee.optimizers = [torch.optim.SGD(trainee.model.parameters(), lr=0.1)]
    best = BestLoss()
    trainee.after = best.see
    trainee.replica.add("best", best)
    _register(trainee)
    return trainee


def moving_average() -> Trainee:
    """A second model that no optimizer touches, and plain values, as a script registers them."""
    trainee = Trainee()
    model, average = Network(), Network()
    trainee.model = model
    trainee.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
    trainee.replica.register("average", average)
    seen = trainee.replica.register("seen", 0)
    losses: list[float] = trainee.replica.register("losses", [])
    summed = trainee.replica.register("summed", torch.zeros(3))

    def follow(loss: float) -> None:
        seen.value += 1
        losses.append(loss)
        summed.add_(loss)
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)

    trainee.after = follow
    _register(trainee)
    return trainee


BUILDERS: dict[str, Builder] = {
    "sgd": with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd_momentum": with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "adam": with_optimizer(lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam_single_tensor": with_optimizer(lambda p: torch.optim.Adam(p, lr=0.01, foreach=False)),
    "adam_foreach": with_optimizer(lambda p: torch.optim.Adam(p, lr=0.01, foreach=True)),
    "adam_fused": with_optimizer(lambda p: torch.optim.Adam(p, lr=0.01, fused=True)),
    "adamw": with_optimizer(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    "adamw_amsgrad": with_optimizer(lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
    "adam_tensor_lr": with_optimizer(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False)),
    "adagrad": with_optimizer(lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "rmsprop": with_optimizer(lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5)),
    "adafactor": with_optimizer(lambda p: torch.optim.Adafactor(p, lr=0.01)),
    "nadam": with_optimizer(lambda p: torch.optim.NAdam(p, lr=0.01)),
    "asgd": with_optimizer(lambda p: torch.optim.ASGD(p, lr=0.01)),
    "rprop": with_optimizer(lambda p: torch.optim.Rprop(p, lr=0.01)),
    "step_lr": with_scheduler(lambda o: torch.optim.lr_scheduler.StepLR(o, 2)),
    "multi_step_lr": with_scheduler(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3, 5])),
    "lambda_lr": with_scheduler(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k)),
    "cosine": with_scheduler(lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3)),
    "one_cycle": with_scheduler(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=40)),
    "cyclic": with_scheduler(lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False)),
    "sequential": with_scheduler(
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 3), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[3],
        )
    ),
    "tensor_lr_scheduler": with_scheduler(
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2), lr=lambda: torch.tensor(0.1)
    ),
    "two_optimizers": two_optimizers,
    "scaled": scaled,
    "bfloat16": bfloat16,
    "sync_batch_norm": sync_batch_norm,
    "channels_last": channels_last,
    "users_object": users_object,
    "moving_average": moving_average,
}


def build(kind: str, seed: int) -> Trainee:
    torch.manual_seed(seed)
    return BUILDERS[kind]()


def move(image: Image, incoming: Incoming) -> None:
    """Carries the payload within the process, in small chunks, as a copy over sockets would."""
    source, target = image.payload(), incoming.payload()
    assert source.nbytes == target.nbytes
    reading, writing = source.cursor(), target.cursor()
    for start in range(0, source.nbytes, 100):
        stop = min(start + 100, source.nbytes)
        sent = b"".join(bytes(view) for view in reading.load(start, stop))
        for view in writing.room(start, stop):
            view[:], sent = sent[: view.nbytes], sent[view.nbytes :]
        writing.store(start, stop)


def copy(source: TorchReplica, target: TorchReplica) -> None:
    image = source.capture()
    incoming = target.prepare(image.meta)
    move(image, incoming)
    incoming.commit()


def _register(trainee: Trainee) -> None:
    trainee.replica.add_model("model", trainee.model)
    for number, optimizer in enumerate(trainee.optimizers):
        trainee.replica.add_optimizer(f"optimizer/{number}", optimizer)
    for number, scheduler in enumerate(trainee.schedulers):
        trainee.replica.add(f"scheduler/{number}", scheduler)
    if trainee.scaler is not None:
        trainee.replica.add("scaler", trainee.scaler)
