"""A copied state is bitwise the source's, whatever it consists of, and goes on exactly as the source does."""

from __future__ import annotations

import threading

import pytest
import torch

from elastic_launch.trainer.state.copy import CopyReceiver, CopySource

from .trainees import BUILDERS, Trainee, build, copy

SOURCE_STEPS = 5


def assert_equal_and_go_on(source: Trainee, target: Trainee) -> None:
    assert source.replica.digest() == target.replica.digest()
    before = source.replica.digest()
    losses = source.train(SOURCE_STEPS, 4)
    assert target.train(SOURCE_STEPS, 4) == losses
    assert source.replica.digest() == target.replica.digest() != before
    for mine, its in zip(source.replica.capture().tensors, target.replica.capture().tensors, strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("target_steps", [0, 3])
@pytest.mark.parametrize("kind", BUILDERS)
def test_copied_state_is_equal_and_goes_on_equally(kind: str, target_steps: int) -> None:
    source, target = build(kind, 1), build(kind, 2)
    source.train(0, SOURCE_STEPS)
    target.train(100, target_steps)
    assert source.replica.structure() == target.replica.structure()
    assert source.replica.digest() != target.replica.digest()
    copy(source.replica, target.replica)
    image = source.replica.capture()
    assert image.nbytes > 0
    assert all(tensor.any() for name, tensor in source.model.named_parameters())
    assert_equal_and_go_on(source, target)


@pytest.mark.parametrize("kind", BUILDERS)
def test_state_before_the_first_step_reaches_a_replica_that_has_trained(kind: str) -> None:
    source, target = build(kind, 1), build(kind, 2)
    target.train(0, 3)
    copy(source.replica, target.replica)
    assert source.replica.digest() == target.replica.digest()
    assert source.train(0, 3) == target.train(0, 3)
    assert source.replica.digest() == target.replica.digest()


@pytest.mark.parametrize("kind", ["adam", "sgd_momentum", "bfloat16", "scaled", "users_object"])
def test_state_goes_over_sockets_from_two_sources(kind: str) -> None:
    sources = [build(kind, 1), build(kind, 1)]
    target = build(kind, 2)
    for source in sources:
        source.train(0, SOURCE_STEPS)
    serving = [CopySource("127.0.0.1", "secret") for _ in sources]
    threads = [
        threading.Thread(target=serve.serve, args=(source.replica.capture(), 1))
        for serve, source in zip(serving, sources, strict=True)
    ]
    for thread in threads:
        thread.start()
    receiver = CopyReceiver([serve.address for serve in serving], "secret", chunk=1000)
    incoming = target.replica.prepare(receiver.meta())
    receiver.fetch(incoming.payload())
    incoming.commit()
    receiver.close()
    for thread, serve in zip(threads, serving, strict=True):
        thread.join()
        serve.close()
    assert_equal_and_go_on(sources[0], target)


def test_optimizer_state_is_not_empty_after_the_copy() -> None:
    source, target = build("adam", 1), build("adam", 2)
    source.train(0, SOURCE_STEPS)
    copy(source.replica, target.replica)
    state = target.optimizers[0].state
    # first, norm, second and tied bias, last: not the frozen and unused ones, and the tied weight once
    assert len(state) == 9
    for entries in state.values():
        assert entries["step"].item() == SOURCE_STEPS and entries["step"].shape == ()
        assert entries["exp_avg"].any() and entries["exp_avg_sq"].any()


def test_skipped_steps_of_a_scaler_are_part_of_the_state() -> None:
    source, target = build("scaled", 1), build("scaled", 2)
    source.train(0, 3)
    copy(source.replica, target.replica)
    assert source.scaler is not None and target.scaler is not None
    assert target.scaler.get_scale() == source.scaler.get_scale() < 2.0**124


def test_learning_rate_of_the_job_replaces_the_joiners() -> None:
    source, target = build("step_lr", 1), build("step_lr", 2)
    source.train(0, SOURCE_STEPS)
    copy(source.replica, target.replica)
    assert target.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)


def test_compiled_model_and_plain_model_have_one_structure() -> None:
    source, target = build("adam", 1), build("adam", 2)
    source.train(0, 2)
    compiled = Trainee()
    compiled.model = target.model
    compiled.replica.add_model("model", torch.compile(target.model))
    compiled.replica.add_optimizer("optimizer/0", target.optimizers[0])
    assert compiled.replica.structure().digest() == source.replica.structure().digest()
    copy(source.replica, compiled.replica)
    assert compiled.replica.digest() == source.replica.digest()


@pytest.mark.gpu
@pytest.mark.parametrize("capturable", [False, True])
def test_state_on_a_device_is_copied_and_goes_on_equally(capturable: bool) -> None:
    trainees = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trainee = Trainee()
        trainee.model = torch.nn.Sequential(
            torch.nn.Linear(6, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2)
        ).cuda()
        trainee.device = "cuda"
        trainee.optimizers = [torch.optim.AdamW(trainee.model.parameters(), lr=0.01, capturable=capturable)]
        trainee.replica.add_model("model", trainee.model)
        trainee.replica.add_optimizer("optimizer", trainee.optimizers[0])
        trainees.append(trainee)
    source, target = trainees
    source.train(0, SOURCE_STEPS)
    copy(source.replica, target.replica)
    steps = [state["step"] for state in target.optimizers[0].state.values()]
    assert [step.item() for step in steps] == [SOURCE_STEPS] * 6
    assert all(step.is_cuda == capturable for step in steps)
    assert_equal_and_go_on(source, target)
