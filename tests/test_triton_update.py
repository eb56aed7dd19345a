"""The steps on a GPU (optim/triton_update.py), run by Triton's interpreter, against torch and the formulas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes with torch on Linux alone")

SCRIPT = """
import math, sys
import pytest
import torch

from oracles_triton import mend_interpreter
from ramlet.engines.torch.optim import plain_update
from ramlet.engines.torch.optim import triton_update as update

mend_interpreter(pytest.MonkeyPatch())


def close(got, wanted, tolerance):
    assert (got.double() - wanted.double()).abs().max() <= tolerance * wanted.double().abs().max(), (got, wanted)


def adamw():
    torch.manual_seed(1)
    weights = torch.randn(3000)
    expected = weights.clone().requires_grad_()
    options = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    torchs = torch.optim.AdamW([expected], lr=0.01, **options)
    products, moments = weights.bfloat16(), (torch.zeros(3000), torch.zeros(3000))
    for step in range(1, 5):
        gradients = torch.randn(3000) * 10.0 ** torch.randint(-6, 3, (3000,))
        expected.grad = gradients * 0.25
        torchs.step()
        one = torch.tensor
        factors = (0.9, 0.95, 1e-8, 0.1)
        update.adamw(weights, products, gradients, moments, one(float(step)), one(0.01), one(0.25), factors)
        close(weights, expected.detach(), 2e-6)
        assert torch.equal(products, weights.bfloat16()) or (products.float() - weights).abs().max() < 0.03
        assert not gradients.any()
    close(moments[0], torchs.state[expected]["exp_avg"], 1e-6)
    close(moments[1], torchs.state[expected]["exp_avg_sq"], 1e-6)
    before = weights.clone()
    update.adamw(weights, weights, torch.ones(3000), moments, one(9.0), one(0.0), one(1.0), factors)
    assert torch.equal(weights, before)  # one tensor for both


def strided(flat, count, rows, columns):
    return flat.as_strided((count, rows, columns), (rows * columns + 50, columns, 1))


def muon(rows, columns):
    torch.manual_seed(2)
    count = 2
    flat = [torch.randn(count * (rows * columns + 50)) for _ in range(4)]
    weights, gradients, momentum, _ = (strided(each, count, rows, columns) for each in flat)
    products = flat[3].bfloat16()
    between = flat[1][rows * columns : rows * columns + 50].clone()
    wanted_momentum = momentum.lerp(gradients * 0.5, 0.05)
    wanted = (gradients * 0.5).lerp(wanted_momentum, 0.95)
    tall = rows > columns
    x = torch.empty(count, *sorted((rows, columns)))
    update.directions(x.mT if tall else x, gradients, momentum, torch.tensor(0.5), 0.95)
    close(momentum, wanted_momentum, 1e-6)
    close(x.mT if tall else x, wanted, 1e-6)
    assert not gradients.any()
    assert torch.equal(flat[1][rows * columns : rows * columns + 50], between)  # between two matrices

    turned = x.mT if tall else x
    running = torch.rand(count, rows, 1)
    squares = turned.square().mean(2, keepdim=True)
    wanted_running = running.lerp(squares, 0.05)
    even = turned / (wanted_running + 1e-12).sqrt()
    even *= (turned.square().sum((1, 2)) / even.square().sum((1, 2))).sqrt()[:, None, None]
    changes = even * 0.3 * math.sqrt(max(rows, columns))
    plain = plain_update.row_scales(turned, running.clone(), torch.tensor(0.3), 0.95, 1e-12)
    close(plain[:, :, None] * turned, changes, 1e-5)
    scales = update.row_scales(turned, running, torch.tensor(0.3), 0.95, 1e-12)
    close(scales, plain, 1e-5)
    close(running, wanted_running, 1e-6)
    expected = 0.9 * weights - changes
    plain_weights, plain_products = weights.clone(), weights.bfloat16()
    plain_update.subtract(plain_weights, plain_products, turned, scales, torch.tensor(0.9))
    close(plain_weights, expected, 1e-5)
    close(plain_products, expected, 0.01)
    update.subtract(weights, strided(products, count, rows, columns), turned, scales, torch.tensor(0.9))
    close(weights, expected, 1e-5)
    close(strided(products, count, rows, columns), expected, 0.01)


def gram(rows, columns):
    torch.manual_seed(3)
    x = torch.randn(1, rows, columns)
    found = update.gram(x)
    close(found, x @ x.mT, 1e-5)
    close(plain_update.gram(x, alpha=2.0), 2 * x @ x.mT, 1e-5)
    # A tile that is mirrored is the same to the bit; one on the diagonal is whatever the CPU's product of it is.
    tile = torch.arange(rows) // update._SIDE
    apart = tile[:, None] != tile[None, :]
    assert apart.any() == (rows > update._SIDE)
    assert torch.equal(found[:, apart], found.mT[:, apart])
    wanted = 0.5 * found @ found - 2 * found + 7 * torch.eye(rows)
    close(update.gram(found, alpha=0.5, beta=-2.0, diagonal=7.0), wanted, 1e-5)
    close(plain_update.gram(found, alpha=0.5, beta=-2.0, diagonal=7.0), wanted, 1e-5)


adamw()
for size in ((40, 70), (70, 40)):
    muon(*size)
for size in ((130, 70), (10, 100)):
    gram(*size)
print("close")
"""


def test_steps_are_those_of_the_formulas(tmp_path: Path) -> None:
    """The interpreter must be asked for before Triton is imported."""
    script = tmp_path / "compare.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert run.stdout == "close\n", run.stderr
