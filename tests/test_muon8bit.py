"""Muon with 8-bit states: its parts against the definition and each other, a step against Muon's, its memory."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles_training import losses, make_data, run
from oracles_training_memory import highest
from ramlet.engines.plan import Choice
from ramlet.engines.torch.optim import muon, muon8bit, native, tiled
from ramlet.engines.torch.optim.factors import single
from ramlet.engines.torch.predict import predict, state_bytes
from ramlet.engines.torch.sizes import stacks
from ramlet.engines.torch.weights import Weights
from ramlet.errors import SettingsError
from ramlet.model.shape import Shape
from ramlet.model.sizing import shape_for
from ramlet.training.settings import RunSettings

torch.set_num_threads(1)

SHAPE = Shape(131, 48, 2, 32, 4, kv_heads=2, feed_forward=80, qk_norm=True)
DECAY, GAIN = single(0.95), single(0.05 * 0.7)


def spread(count: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(2, count, generator=draw)
    return normal[0] * torch.exp(2 * normal[1]) * 1e-3


@pytest.mark.parametrize("count", [1, 255, 257, 5001])
def test_the_momentum_is_the_definitions(count: int) -> None:
    codes, scales = np.zeros(count, np.int8), np.zeros(-(-count // 256), np.float32)
    for step in range(20):
        gradients = spread(count, step).numpy()
        directions, before = gradients.copy(), copy.deepcopy((codes, scales))
        native.momentum(*map(torch.from_numpy, (directions, codes, scales)), DECAY, GAIN)
        for number in range(len(scales)):
            block = slice(number * 256, (number + 1) * 256)
            gained = np.float32(GAIN) * gradients[block]
            moments = before[0][block] * (np.float32(DECAY) * before[1][number]) + gained
            np.testing.assert_array_equal(directions[block], np.float32(DECAY) * moments + gained)
            assert scales[number] == np.abs(moments).max() * np.float32(1 / 127)
            assert (np.abs(codes[block] * scales[number].astype(np.float64) - moments) <= 0.5001 * scales[number]).all()
            assert np.abs(codes[block]).max() == 127


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_torch_does_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILE", 2048)
    count = 256 * 31 + 77
    states = [(torch.zeros(count, dtype=torch.int8), torch.zeros(-(-count // 256))) for _ in range(2)]
    flat = [torch.cat([spread(40, 7), spread(4 * 3000, 8)]).bfloat16() for _ in range(2)]
    for step in range(8):
        gradients = spread(count, step).to(dtype)
        gradients[:300] = 0
        if step == 6:
            gradients[600], gradients[1000] = math.nan, math.inf
        found = [gradients.clone() for _ in range(2)]
        for module, directions, state, weights in zip((native, tiled), found, states, flat):
            module.momentum(directions, *state, DECAY, GAIN)
            # Two matrices with a gap, as the same matrix of two layers.
            matrices = weights.as_strided((2, 50, 60), (6000, 60, 1), 40)
            module.subtract(matrices, spread(6000, step).view(2, 50, 60), 0.999, step)
        for one, other in zip((found[0], *states[0], flat[0]), (found[1], *states[1], flat[1])):
            assert torch.equal(one.isnan(), other.isnan())
            assert torch.equal(one.nan_to_num(), other.nan_to_num())


TRITON = """
import torch
from ramlet.engines.torch.optim import native, triton_kernel

torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
for count in (1, 256 * 5 + 77):
    for dtype in (torch.float32, torch.bfloat16):
        states = [(torch.zeros(count, dtype=torch.int8), torch.zeros(-(-count // 256))) for _ in range(2)]
        flat = [torch.linspace(-3, 5, 40 + 4 * 700).bfloat16() for _ in range(2)]
        for step in range(4):
            noise = torch.randn(2, count, generator=draw)
            gradients = (noise[0] * torch.exp(3 * noise[1]) * 1e-3).to(dtype)
            changes = torch.randn(2, 20, 35, generator=draw) * 1e-3
            found = [gradients.clone() for _ in range(2)]
            for module, directions, state, weights in zip((native, triton_kernel), found, states, flat):
                module.momentum(directions, *state, 0.949999988079071, 0.03500000014901161)
                module.subtract(weights.as_strided((2, 20, 35), (1400, 35, 1), 40), changes, 0.9990000128746033, step)
        pairs = zip((found[0], *states[0], flat[0]), (found[1], *states[1], flat[1]))
        assert all(torch.equal(one, other) for one, other in pairs), (count, dtype)
print("the same")
"""


def test_triton_does_the_same(tmp_path: Path) -> None:
    """Run by Triton's interpreter, which must be asked for before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch on Linux alone")
    script = tmp_path / "compare.py"
    script.write_text(TRITON)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout == "the same\n", run.stderr


def stepped(
    module: object, steps: int, *, dtype: torch.dtype = torch.float32, compute: torch.dtype = torch.float32
) -> Weights:
    weights = Weights(SHAPE, dtype=dtype, compute=compute)
    weights.initialize(1)
    weights.make_gradients()
    optimizer = module.make(weights, RunSettings(weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    torch.manual_seed(2)
    drift = torch.randn_like(weights.hidden, dtype=torch.float32)
    for _ in range(steps):
        weights.matrices.grad.copy_(torch.randn(weights.matrices.shape))
        weights.hidden.grad.add_(drift)
        optimizer.step(grad_scale=0.5)
    return weights


def test_it_follows_muon() -> None:
    """Thirty steps of the same gradients: the path of 32 bits, within a few percent of its length."""
    start = stepped(muon, 0).hidden
    wide, narrow = stepped(muon, 30).hidden - start, stepped(muon8bit, 30).hidden - start
    assert (narrow - wide).norm() < 0.03 * wide.norm()
    bf16 = stepped(muon8bit, 30, dtype=torch.bfloat16, compute=torch.bfloat16).hidden.float() - start
    assert (bf16 - wide).norm() < 0.1 * wide.norm()


def test_bf16_weights_decay() -> None:
    """By less than their last bit in a step: rounded to nearest, they would stay as they are."""
    weights = Weights(SHAPE, dtype=torch.bfloat16)
    weights.hidden.fill_(1.0)
    weights.make_gradients()
    optimizer = muon8bit.make(weights, RunSettings(weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for _ in range(10):
        weights.matrices.grad.zero_()
        optimizer.step()
    stack = stacks(SHAPE)[0]
    left = weights.hidden[stack.start : stack.start + stack.rows * stack.columns].double()
    assert left.mean() == pytest.approx(0.999**10, abs=2e-3)
    assert len(left.unique()) > 1


def test_the_states_of_124m_parameters() -> None:
    shape = shape_for(124_000_000, vocab_size=50_304, context=1024, tied=True)
    states = state_bytes(shape, Choice(8, 512, optimizer="muon8bit", compute="bf16"))
    assert states["optimizer"] <= 1.4 * shape.parameters


def test_its_memory_is_below_that_of_the_others() -> None:
    shape = shape_for(30_000_000, vocab_size=8192, context=256)

    def peak(**changes: str) -> int:
        return predict(shape, Choice(2, 128, compute="bf16").with_(**changes), seq_len=256).peak

    assert peak(optimizer="muon8bit") < peak(optimizer="muon") < peak(optimizer="adamw")
    assert peak(optimizer="muon8bit", weights="bf16") < peak(optimizer="muon8bit")


def test_no_momentum_in_32_bits() -> None:
    """What a step allocates is bounded by its largest matrices, whatever the number of layers."""
    peaks = []
    for layers in (2, 8):
        shape = Shape(64, 32, layers, 64, 4, feed_forward=160)
        weights = Weights(shape, compute=torch.bfloat16)
        weights.initialize(1)
        weights.make_gradients()
        optimizer = muon8bit.make(weights, RunSettings())
        optimizer.step()
        weights.matrices.grad.normal_()
        most = highest(optimizer.step)
        assert (
            most <= muon8bit.scratch_bytes(shape, Choice(1, 1, compute="bf16"), "cpu", torch.get_num_threads()) + 8192
        )
        peaks.append(most)
    assert peaks[0] == pytest.approx(peaks[1], abs=8192)


def test_a_run_learns_and_keeps_its_optimizer(tmp_path: Path) -> None:
    data, out = make_data(tmp_path), tmp_path / "run"
    run(data, out, optimizer="muon8bit")
    learned = losses(out)
    assert learned[-1] < learned[0]
    for other in ("muon", "adamw8bit"):
        with pytest.raises(SettingsError, match="was begun with optimizer muon8bit, and a run keeps it"):
            run(data, out, optimizer=other)
