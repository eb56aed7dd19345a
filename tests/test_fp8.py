"""Products with fp8 inputs in the forward pass of training (engines/torch/fp8.py), without a GPU."""

from __future__ import annotations

import pytest
import torch

from ramlet.engines.plan import Choice
from ramlet.engines.torch import fp8
from ramlet.engines.torch.device import Device
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.kernels import plain
from ramlet.engines.torch.predict import state_bytes
from ramlet.engines.torch.step import Trainee
from ramlet.errors import SettingsError
from ramlet.model.shape import Shape
from ramlet.training.settings import RunSettings

SHAPE = Shape(vocab_size=320, context=32, layers=2, width=64, heads=2, qk_norm=True)


def a_trainee(compute: str, optimizer: str = "adamw") -> Trainee:
    choice = Choice(micro_batch=4, chunk=64, optimizer=optimizer, weights="fp32", compute=compute)
    trainee = Trainee(SHAPE, choice, RunSettings(seed=3), device="cpu")
    trainee.reset(3)
    return trainee


def a_batch(seed: int) -> dict[str, object]:
    ids = torch.randint(0, 300, (4, 33), generator=torch.Generator().manual_seed(seed)).numpy()
    return {"input_ids": ids[:, :-1], "targets": ids[:, 1:]}


def test_a_product_is_that_of_the_rounded_numbers() -> None:
    x, weight = torch.randn(8, 32), torch.randn(48, 32) * 0.02
    got = fp8.product(plain.to_fp8(x, fp8.INPUT_SCALE), plain.to_fp8(weight, fp8.WEIGHT_SCALE))
    rounded = [
        (each * scale).to(torch.float8_e4m3fn).double() / scale
        for each, scale in ((x, fp8.INPUT_SCALE), (weight, fp8.WEIGHT_SCALE))
    ]
    torch.testing.assert_close(got.double(), rounded[0] @ rounded[1].t(), rtol=1e-2, atol=1e-3)
    # A mantissa of 3 bits: each number is off by at most 1/16.
    assert (rounded[1] - weight).abs().max() <= weight.abs().max() / 16


def test_numbers_out_of_range_become_the_highest() -> None:
    found = plain.to_fp8(torch.tensor([[1e9, -1e9, 0.0, 1e-9]]), 1.0)
    assert found.float().tolist() == [[448.0, -448.0, 0.0, 0.0]]


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamw8bit", "muon8bit"])
def test_training_follows_that_of_bf16(optimizer: str) -> None:
    losses = {}
    for compute in ("bf16", "fp8"):
        trainee = a_trainee(compute, optimizer)
        losses[compute] = []
        for step in range(12):
            losses[compute].append(float(trainee.learn(a_batch(step % 2), 1 / 128)) / 128)
            trainee.update(3e-3, 1.0)
    assert losses["fp8"][-1] < losses["fp8"][0] - 0.2
    for ours, other in zip(losses["fp8"], losses["bf16"]):
        assert abs(ours - other) < 0.02 * other
    assert losses["fp8"] != losses["bf16"]


def test_the_copy_follows_the_weights() -> None:
    trainee = a_trainee("fp8")
    trainee.learn(a_batch(1), 1 / 128)
    trainee.update(1e-2, 1.0)
    for weight in trainee.model.weights:
        if weight.fp8 is not None:
            wanted = plain.to_fp8(weight.compute, fp8.WEIGHT_SCALE)
            assert torch.equal(weight.fp8.view(torch.uint8), wanted.view(torch.uint8))


def test_evaluation_is_in_bf16() -> None:
    ids = torch.randint(0, 300, (2, 17))
    losses = []
    for compute in ("bf16", "fp8"):
        model = a_trainee(compute).model
        losses.append(model.losses(ids[:, :-1], ids[:, 1:]))
    assert torch.equal(*losses)


def test_matrices_that_the_instructions_do_not_take_stay_in_bf16() -> None:
    shape = Shape(vocab_size=320, context=32, layers=1, width=60, heads=2, feed_forward=100)
    model = GPT(shape, dtype=torch.float32, compute=torch.bfloat16, use_fp8=True)
    model.weights.initialize(1)
    model.weights.make_gradients()
    assert all(weight.fp8 is None for weight in model.weights)
    ids = torch.randint(0, 300, (2, 17))
    assert float(model.learn(ids[:, :-1], ids[:, 1:], 1 / 32)) > 0


def test_the_plan_counts_the_copies() -> None:
    bf16, both = (
        state_bytes(SHAPE, Choice(micro_batch=1, chunk=8, optimizer="adamw", weights="fp32", compute=compute))
        for compute in ("bf16", "fp8")
    )
    trainee = a_trainee("fp8")
    assert both["weights"] - bf16["weights"] == trainee.model.weights.matrices.numel()


def test_a_cpu_has_no_fp8() -> None:
    with pytest.raises(SettingsError, match="fp8 needs a GPU"):
        Device("cpu").precision("fp8")
