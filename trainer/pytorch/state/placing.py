"""Where a receiver puts the tensors that come: into live ones wherever it has them, else into tensors made for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .memory import TensorSpec, overlaps_itself


class Slot(NamedTuple):
    """Stands for a tensor in a tree whose tensors have not come yet."""

    number: int
    spec: TensorSpec


class Placer:
    """Finds a tensor for each slot. A live tensor is given to one slot only, even if the receiver uses it twice."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = specs
        self._placed: list[torch.Tensor | None] = [None] * len(specs)
        self._taken: set[int] = set()

    def slot(self, number: int) -> Slot:
        return Slot(number, self.specs[number])

    def use(self, slot: Slot, live: torch.Tensor) -> None:
        """The slot's bytes go into `live`, which has its shape and type."""
        if self._placed[slot.number] is None:
            self._placed[slot.number] = live.detach()
            self._taken.add(id(live))

    def offer(self, slot: Slot, live: object, device: torch.device) -> None:
        """The slot's bytes go into `live` if that is a tensor of the right kind and free, else into one made for it."""
        if self._placed[slot.number] is not None:
            return
        if (
            isinstance(live, torch.Tensor)
            and id(live) not in self._taken
            and slot.spec.fits(live)
            and live.device == device
            and live.layout is torch.strided
            and not overlaps_itself(live)
        ):
            self._placed[slot.number] = live
            self._taken.add(id(live))
        else:
            self._placed[slot.number] = slot.spec.empty(device)

    def offer_tree(self, tree: Any, live: Any, device: torch.device) -> None:
        """`offer` for every slot in a tree of plain containers, with the live value at the same place in `live`."""
        if isinstance(tree, Slot):
            self.offer(tree, live, device)
        elif isinstance(tree, dict):
            for key, item in tree.items():
                self.offer_tree(item, live.get(key) if isinstance(live, dict) else None, device)
        elif isinstance(tree, (list, tuple)):
            for number, item in enumerate(tree):
                has = isinstance(live, (list, tuple)) and number < len(live)
                self.offer_tree(item, live[number] if has else None, device)

    def tensors(self) -> list[torch.Tensor]:
        """One for each slot, in order; what nothing was found for is made on the kind of device that it comes from."""
        for number, spec in enumerate(self.specs):
            if self._placed[number] is None:
                self._placed[number] = spec.empty(default_device(spec.device))
        return [tensor for tensor in self._placed if tensor is not None]


def default_device(kind: str) -> torch.device:
    """This process's device of a kind: a peer's cuda:3 may be cuda:0 here."""
    if kind == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
