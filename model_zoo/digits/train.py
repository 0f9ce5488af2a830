"""A small convolutional network on scikit-learn's handwritten digits, on workers that may come and go.

    elastic-launch --min 1 --max 4 model_zoo/digits/train.py
    python model_zoo/digits/train.py

The second is the same job on one worker, without an agent.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launch as elastic
from elastic_launch.model_zoo.report import Report


class DigitNet(nn.Sequential):
    """Two convolutions and two linear layers: 8 x 8 grey pixels to ten scores, 38,282 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,347 images to train on and 450 to test on, the same ones in every process."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    targets = torch.tensor(labels, dtype=torch.int64)
    train, test = train_test_split(range(len(targets)), test_size=0.25, stratify=labels, random_state=0)
    return TensorDataset(pixels[train], targets[train]), TensorDataset(pixels[test], targets[test])


def score(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """Means over the samples of a batch."""
    images, labels = batch
    scores = model(images)
    return {
        "loss": functional.cross_entropy(scores, labels),
        "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
    }


def train(epochs: int, global_batch: int, learning_rate: float, seed: int) -> dict[str, float]:
    """Train, and return loss and accuracy on the test set."""
    torch.manual_seed(seed)
    train_set, test_set = digits()
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    steps = epochs * math.ceil(len(train_set) / global_batch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    job = elastic.join(model=model, optimizer=optimizer, scheduler=scheduler, seed=seed)
    loader = job.loader(train_set, global_batch=global_batch)
    report = Report(job, epochs)

    results: dict[str, float] = {}
    for _ in job.epochs(epochs):
        for images, labels in loader:  # this worker's part of the global batch
            with job.step():
                loss = functional.cross_entropy(job.model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                job.log(loss=loss)
                optimizer.step()
                scheduler.step()
            report.step()
        results = job.evaluate(test_set, score)
        report.epoch(results)
    report.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--global-batch", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate at the first step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.global_batch, arguments.lr, arguments.seed)


if __name__ == "__main__":
    main()
