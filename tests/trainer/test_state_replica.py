"""What a replica says when states do not fit, and how it treats things that come or go at odd moments."""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elastic_launch.errors import StateMismatchError, UsageError
from elastic_launch.trainer.pytorch.state.buffers import BufferBackup
from elastic_launch.trainer.pytorch.state.replica import TorchReplica
from elastic_launch.trainer.state.registering import Value
from elastic_launch.trainer.state.structure import Structure

from .trainees import BestLoss, Network, build, copy


def replica_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> TorchReplica:
    replica = TorchReplica()
    replica.add_model("model", model)
    if optimizer is not None:
        replica.add_optimizer("optimizer", optimizer)
    return replica


class TestStructure:
    def test_it_survives_the_way_over_the_wire(self) -> None:
        structure = build("two_optimizers", 1).replica.structure()
        received = Structure.from_bytes(structure.to_bytes())
        assert received == structure and received.digest() == structure.digest()
        assert structure.explain(received) == ""

    def test_tied_weights_count_once(self) -> None:
        structure = build("sgd", 1).replica.structure()
        assert "second.weight" in structure.models["model"].parameters
        assert "tied.weight" not in structure.models["model"].parameters

    def test_lazily_made_optimizer_state_does_not_count(self) -> None:
        trainee = build("adam", 1)
        before = trainee.replica.structure().digest()
        trainee.train(0, 2)
        assert trainee.replica.structure().digest() == before

    @pytest.mark.parametrize(
        ("here", "job", "text"),
        [
            (
                nn.Linear(64, 10),
                nn.Linear(32, 10),
                "parameter 'weight' is (10, 64) float32 here and (10, 32) float32 in",
            ),
            (
                nn.Linear(4, 2),
                nn.Linear(4, 2).double(),
                "parameter 'weight' is (2, 4) float32 here and (2, 4) float64 in",
            ),
            (nn.Linear(4, 2), nn.Linear(4, 2, bias=False), "parameter 'bias' (2,) float32 is here and not in the job"),
            (nn.Linear(4, 2, bias=False), nn.Linear(4, 2), "parameter 'bias' (2,) float32 is in the job and not here"),
            (
                nn.BatchNorm1d(3),
                nn.BatchNorm1d(3, track_running_stats=False),
                "buffer 'running_mean' (3,) float32 is here and not in the job",
            ),
        ],
    )
    def test_differences_of_models_are_named(self, here: nn.Module, job: nn.Module, text: str) -> None:
        mine, its = replica_of(here).structure(), replica_of(job).structure()
        assert mine.digest() != its.digest()
        assert f"model {text}" in mine.explain(its)

    def test_differences_of_optimizers_are_named(self) -> None:
        model = nn.Linear(4, 2)
        weight, bias = model.parameters()
        adam = replica_of(model, torch.optim.Adam([weight, bias])).structure()
        sgd = replica_of(model, torch.optim.SGD([weight, bias])).structure()
        groups = replica_of(model, torch.optim.Adam([{"params": [weight]}, {"params": [bias]}])).structure()
        fewer = replica_of(model, torch.optim.Adam([weight])).structure()
        swapped = replica_of(model, torch.optim.Adam([bias, weight])).structure()
        none = replica_of(model).structure()
        assert adam.explain(sgd) == "optimizer 'optimizer' is Adam here and SGD in the job"
        assert adam.explain(groups) == "optimizer 'optimizer' has 1 parameter groups here and 2 in the job"
        assert fewer.explain(adam) == "optimizer 'optimizer' group 0 has 1 parameters here and 2 in the job"
        assert "group 0 parameter 0 is 'bias' here and 'weight' in the job" in swapped.explain(adam)
        assert adam.explain(none) == "optimizer 'optimizer' is here and not in the job"
        assert none.explain(adam) == "optimizer 'optimizer' is in the job and not here"

    def test_only_the_first_differences_are_told(self) -> None:
        mine, its = replica_of(Network()).structure(), replica_of(nn.Linear(2, 2)).structure()
        assert re.search(r"\(and \d+ more differences\)$", mine.explain(its))


class TestMismatch:
    def test_other_shape_is_refused_before_anything_is_touched(self) -> None:
        source, target = replica_of(nn.Linear(32, 10)), replica_of(nn.Linear(64, 10))
        before = target.digest()
        with pytest.raises(
            StateMismatchError, match=r"model parameter 'weight' is \(10, 64\) float32 here and \(10, 32\)"
        ):
            target.prepare(source.capture().meta)
        assert target.digest() == before

    def test_state_that_an_object_does_not_take_is_named(self) -> None:
        source, target = TorchReplica(), TorchReplica()
        source.add("scaler", torch.amp.GradScaler("cpu", enabled=False))
        target.add("scaler", torch.amp.GradScaler("cpu"))
        with pytest.raises(StateMismatchError, match=r"'scaler' \(GradScaler\) does not take the job's state"):
            copy(source, target)

    def test_name_of_another_kind_is_refused(self) -> None:
        source, target = TorchReplica(), TorchReplica()
        source.register("thing", 3)
        target.register("thing", torch.zeros(3))
        with pytest.raises(
            StateMismatchError, match="'thing' is registered as a tensor here and as a value in the job"
        ):
            copy(source, target)

    def test_class_that_is_not_defined_here_is_named(self) -> None:
        source, target = TorchReplica(), TorchReplica()
        source.register("point", Value(SourceOnly()))
        target.register("point", Value(None))
        image = source.capture()
        meta = image.meta.replace(b"SourceOnly", b"SourceGone")
        with pytest.raises(StateMismatchError, match="'point' cannot be read here"):
            target.prepare(meta).commit()


class SourceOnly:
    pass


class TestRegistering:
    def test_what_cannot_be_replicated_is_refused_at_once(self) -> None:
        replica = TorchReplica()
        with pytest.raises(UsageError, match="give it state_dict"):
            replica.register("lock", threading.Lock())
        with pytest.raises(UsageError, match=r"box.locks\[0\] of type lock cannot be replicated"):
            replica.register("box", {"locks": [threading.Lock()]})
        with pytest.raises(UsageError, match="has no state_dict"):
            replica.add("x", 3)  # type: ignore[arg-type]
        knot: list[Any] = []
        knot.append(knot)
        with pytest.raises(UsageError, match="contains itself"):
            replica.register("knot", knot)
        assert replica.capture().tensors == []

    def test_name_is_given_once(self) -> None:
        replica = replica_of(nn.Linear(2, 2))
        with pytest.raises(UsageError, match="registered as 'model' already"):
            replica.register("model", 3)

    def test_lazy_and_meta_modules_are_refused(self) -> None:
        with pytest.raises(UsageError, match="has no shape yet"):
            replica_of(nn.LazyLinear(3))
        with pytest.raises(UsageError, match="meta device"):
            replica_of(nn.Linear(2, 2, device="meta"))
        with pytest.raises(UsageError, match="only ordinary tensors are replicated"):
            sparse = nn.Module()
            sparse.weight = nn.Parameter(torch.eye(3).to_sparse())
            replica_of(sparse)

    @pytest.mark.parametrize(
        "value",
        [3, 1 << 90, -0.0, float("inf"), "text", b"\0bytes", None, True, (1, (2.5, "x")), frozenset("abc"), 2 + 3j],
    )
    def test_plain_value_is_held_and_replaced(self, value: Any) -> None:
        source, target = TorchReplica(), TorchReplica()
        assert source.register("x", value).value == value
        held = target.register("x", 7)
        copy(source, target)
        assert held.value == value and type(held.value) is type(value)
        assert source.digest() == target.digest()

    @pytest.mark.parametrize(
        ("here", "job"),
        [
            ([1], [2, [3, {"k": torch.arange(3)}]]),
            ({"a": 1}, {"b": 2, 3: (4,)}),
            ({1}, {2, 3}),
            (bytearray(b"a"), bytearray(b"bcd")),
            (OrderedDict(a=1), OrderedDict(z=1, a=2)),
            (Counter("aab"), Counter("xyzz")),
            (defaultdict(int, a=1), defaultdict(int, b=2)),
            (torch.zeros(2, 3), torch.ones(2, 3)),
            (np.zeros(3), np.arange(3.0)),
        ],
        ids=lambda value: type(value).__name__,
    )  # fmt: skip
    def test_container_is_changed_in_place(self, here: Any, job: Any) -> None:
        source, target = TorchReplica(), TorchReplica()
        source.register("x", job)
        assert target.register("x", here) is here
        copy(source, target)
        assert str(here) == str(job) and type(here) is type(job)
        assert source.digest() == target.digest()

    def test_value_of_functions(self) -> None:
        source, target, seen = TorchReplica(), TorchReplica(), []
        source.add_value("lr", lambda: 0.5, seen.append)
        target.add_value("lr", lambda: 0.1, seen.append)
        copy(source, target)
        assert seen == [0.5]

    @pytest.mark.parametrize("relays", [0, 1])
    def test_state_waits_for_a_name_that_is_registered_later(self, relays: int) -> None:
        source = build("moving_average", 1)
        source.train(0, 3)
        best = BestLoss()
        best.see(3.0)
        source.replica.add("best", best)
        replica = source.replica
        late = TorchReplica()
        for _ in range(relays + 1):  # with a relay: from one that has not registered them either
            late = TorchReplica()
            copy(replica, late)
            assert late.digest() == source.replica.digest()
            assert len(late.buffers()) == len(source.replica.buffers()) == 6
            replica = late
        trainee = build("moving_average", 2)
        model, optimizer = trainee.model, trainee.optimizers[0]
        late.add_model("model", model)
        late.add_optimizer("optimizer/0", optimizer)
        assert late.structure() == source.replica.structure()
        average, its_best = Network(), BestLoss()
        late.register("average", average)
        seen = late.register("seen", 0)
        losses = late.register("losses", [])
        summed = late.register("summed", torch.zeros(3))
        late.add("best", its_best)
        assert late.digest() == source.replica.digest()
        assert seen.value == 3 and len(losses) == 3 and summed.all() and its_best.best == 3.0
        assert torch.equal(model.get_parameter("first.weight"), source.model.get_parameter("first.weight"))
        assert torch.equal(average.first.weight, source_average(source.replica).first.weight)

    def test_late_name_of_another_shape_is_refused(self) -> None:
        source, late = TorchReplica(), TorchReplica()
        source.register("x", torch.zeros(3))
        copy(source, late)
        with pytest.raises(
            StateMismatchError, match=r"tensor 'x' is \(2,\) float32 here and \(3,\) float32 in the job"
        ):
            late.register("x", torch.zeros(2))

    def test_things_of_the_receiver_alone_stay_as_they_are(self) -> None:
        source, target = replica_of(nn.Linear(2, 2)), replica_of(nn.Linear(2, 2))
        mine = target.register("mine", 5)
        copy(source, target)
        assert mine.value == 5


def source_average(replica: TorchReplica) -> Network:
    average = next(module for module in replica.models() if module is not replica.models()[-1])
    assert isinstance(average, Network)
    return average


class TestDigest:
    def test_every_bit_counts(self) -> None:
        trainee = build("adam", 1)
        trainee.train(0, 2)
        digests = {trainee.replica.digest()}
        for tensor in trainee.replica.capture().tensors:
            if tensor.numel():
                tensor.view(-1)[-1:].view(torch.uint8)[0] ^= 1
                digests.add(trainee.replica.digest())
        assert len(digests) == 1 + len(trainee.replica.capture().tensors)

    def test_negative_zero_and_nan_payloads_count(self) -> None:
        values = torch.tensor([0, -(1 << 31), 0x7FC00000, 0x7FC00001], dtype=torch.int64).to(torch.int32)
        digests = set()
        for value in values:
            replica = TorchReplica()
            replica.register("x", value.clone().view(torch.float32))
            digests.add(replica.digest())
        assert len(digests) == 4

    def test_order_of_registration_and_of_keys_does_not_count(self) -> None:
        one, other = TorchReplica(), TorchReplica()
        one.register("a", {"x": torch.ones(2), "y": torch.zeros(2)})
        one.register("b", 2)
        other.register("b", 2)
        other.register("a", {"y": torch.zeros(2), "x": torch.ones(2)})
        assert one.digest() == other.digest()

    def test_sharing_and_identity_inside_objects_do_not_count(self) -> None:
        shared, text = torch.ones(2), "".join(["long ", "text"])
        one, other = TorchReplica(), TorchReplica()
        one.register("x", [shared, shared, deque([text, text]), deque({"b", "a"})])
        other.register("x", [shared, shared.clone(), deque([text, "long " + "text"[:4]]), deque(sorted({"b", "a"}))])
        first = one.digest()
        assert (first == other.digest()) == (list({"b", "a"}) == ["a", "b"])

    def test_memory_layout_does_not_count(self) -> None:
        one, other = TorchReplica(), TorchReplica()
        picture = torch.arange(120.0).reshape(2, 3, 4, 5)
        one.register("x", picture)
        other.register("x", picture.to(memory_format=torch.channels_last))
        assert one.digest() == other.digest()


class TestLayouts:
    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64, torch.uint8]
    )
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3, 1)])
    def test_all_types_and_shapes(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        source, target = TorchReplica(), TorchReplica()
        value = torch.randint(0, 2, shape).to(dtype)
        source.register("x", value)
        mine = torch.zeros(shape, dtype=dtype)
        target.register("x", mine)
        copy(source, target)
        assert torch.equal(mine, value) and source.digest() == target.digest()

    @pytest.mark.parametrize("here", range(5))
    @pytest.mark.parametrize("job", range(5))
    def test_source_and_receiver_may_lie_differently_in_memory(self, here: int, job: int) -> None:
        def lying(number: int, fill: float) -> torch.Tensor:
            plain = torch.arange(120.0).reshape(2, 3, 4, 5) * fill
            if number == 0:
                return plain
            if number == 1:
                return plain.to(memory_format=torch.channels_last)
            if number == 2:
                return plain.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
            if number == 3:
                wide = torch.zeros(2, 3, 8, 5)
                wide[:, :, ::2] = plain
                return wide[:, :, ::2]
            return plain[:, :, :, :1].expand(2, 3, 4, 5).clone(memory_format=torch.preserve_format)

        source, target = TorchReplica(), TorchReplica()
        value, mine = lying(job, 1), lying(here, 0)
        strides = mine.stride()
        source.register("x", value)
        target.register("x", mine)
        copy(source, target)
        assert torch.equal(mine, value) and mine.stride() == strides

    def test_expanded_and_lazily_made_buffers_are_replaced(self) -> None:
        source, target = nn.Module(), nn.Module()
        source.register_buffer("expanded", torch.arange(3.0))
        target.register_buffer("expanded", torch.zeros(1).expand(3))
        source.register_buffer("cache", torch.ones(5), persistent=False)
        target.register_buffer("cache", torch.ones(2), persistent=False)
        source.register_buffer("lazy", torch.ones(4), persistent=False)
        target.register_buffer("lazy", None, persistent=False)
        source.register_buffer("dropped", None, persistent=False)
        target.register_buffer("dropped", torch.ones(1), persistent=False)
        mine, its = replica_of(target), replica_of(source)
        assert mine.structure() == its.structure()
        copy(its, mine)
        assert mine.digest() == its.digest()
        assert target.dropped is None and target.lazy.tolist() == [1, 1, 1, 1]

    def test_tensors_are_received_where_they_live(self) -> None:
        source, target = build("adam", 1), build("adam", 2)
        source.train(0, 2)
        target.train(0, 2)
        live = {tensor.data_ptr() for tensor in target.replica.capture().tensors}
        incoming = target.replica.prepare(source.replica.capture().meta)
        assert {tensor.data_ptr() for tensor in incoming.tensors} == live

    def test_tensor_that_the_receiver_shares_is_not_received_twice(self) -> None:
        source, target = build("two_optimizers", 1), build("two_optimizers", 2)
        for trainee, rates in ((source, [torch.tensor(0.1), torch.tensor(0.2)]), (target, [torch.tensor(0.0)] * 2)):
            for group, rate in zip(trainee.optimizers[0].param_groups, rates, strict=True):
                group["lr"] = rate
        copy(source.replica, target.replica)
        assert [group["lr"].item() for group in target.optimizers[0].param_groups] == pytest.approx([0.1, 0.2])
        assert source.replica.digest() == target.replica.digest()


class TestModels:
    def test_frozen_flags_follow_the_job(self) -> None:
        source, target = nn.Linear(2, 2), nn.Linear(2, 2)
        source.bias.requires_grad_(False)
        target.weight.requires_grad_(False)
        copy(replica_of(source), replica_of(target))
        assert target.weight.requires_grad and not target.bias.requires_grad

    def test_extra_state_of_modules_is_carried(self) -> None:
        source, target = Counting(), Counting()
        source.count = 5
        mine, its = replica_of(nn.Sequential(target)), replica_of(nn.Sequential(source))
        copy(its, mine)
        assert target.count == 5 and mine.digest() == its.digest()

    def test_other_settings_of_param_groups_follow_the_job(self) -> None:
        source, target = build("sgd_momentum", 1), build("sgd_momentum", 2)
        source.optimizers[0].param_groups[0].update(lr=0.5, note=[1, 2])
        target.optimizers[0].param_groups[0].update(mine=1)
        copy(source.replica, target.replica)
        group = target.optimizers[0].param_groups[0]
        assert group["lr"] == 0.5 and group["note"] == [1, 2] and "mine" not in group
        assert group["params"][0] is next(target.model.parameters())

    def test_stale_state_of_the_receivers_optimizer_is_removed(self) -> None:
        source, target = build("adam", 1), build("adam", 2)
        target.train(0, 3)
        assert target.optimizers[0].state
        copy(source.replica, target.replica)
        assert not target.optimizers[0].state

    def test_empty_optimizer_state_left_by_looking_does_not_count(self) -> None:
        trainee = build("sgd", 1)
        before = trainee.replica.digest()
        trainee.optimizers[0].state[next(trainee.model.parameters())]
        assert trainee.replica.digest() == before

    def test_optimizer_state_lies_where_its_rules_want_it(self) -> None:
        source, target = nn.Linear(2, 2), nn.Linear(2, 2)
        rules = torch.optim.Adam(source.parameters(), capturable=True)
        for parameter in source.parameters():  # as one on a device would make it; it cannot step on a CPU
            rules.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.ones_like(parameter)}
        mine = torch.optim.Adam(target.parameters())
        copy(replica_of(source, rules), replica_of(target, mine))
        assert mine.param_groups[0]["capturable"] is True
        assert [state["step"].item() for state in mine.state.values()] == [3, 3]

    def test_buffers_are_listed_in_one_order(self) -> None:
        one, other = build("adam", 1).replica, build("adam", 2).replica
        assert [(b.shape, b.dtype) for b in one.buffers()] == [(b.shape, b.dtype) for b in other.buffers()]
        assert len(one.buffers()) == 3


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class TestBufferBackup:
    def test_restore_puts_back_values_and_replaced_tensors(self) -> None:
        model = Network()
        original = model.norm.running_var
        backup = BufferBackup([model])
        backup.save()
        model(torch.randn(4, 6))
        model.norm.running_var = torch.zeros(8)
        backup.restore()
        assert model.norm.running_mean.tolist() == [0] * 8
        assert model.norm.running_var is original and original.tolist() == [1] * 8
        assert model.norm.num_batches_tracked.item() == 0

    def test_each_save_counts(self) -> None:
        model = Network()
        backup = BufferBackup([model])
        backup.restore()  # nothing was saved, nothing happens
        for _ in range(2):
            backup.save()
            model(torch.randn(4, 6))
        backup.restore()
        assert model.norm.num_batches_tracked.item() == 1

    def test_buffer_that_was_made_inside_the_step_is_dropped(self) -> None:
        model = nn.Module()
        model.register_buffer("made", None)
        backup = BufferBackup([model])
        backup.save()
        model.made = torch.ones(1)
        backup.restore()
        assert model.made is None
