"""A step of Muon against the formula in float64, matrix by matrix."""

from __future__ import annotations

import math

import pytest
import torch

from ramlet.engines.constants import COEFFICIENTS, MARGIN
from ramlet.engines.torch.optim import muon
from ramlet.engines.torch.sizes import stacks
from ramlet.engines.torch.weights import Weights
from ramlet.model.shape import Shape
from ramlet.training.settings import RunSettings

SHAPE = Shape(131, 48, 2, 32, 4, kv_heads=2, feed_forward=80, qk_norm=True)
RATE = 0.01


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    x = x / (x.norm() * MARGIN)
    for a, b, c in COEFFICIENTS:
        gram = x @ x.mT if len(x) <= x.shape[1] else x.mT @ x
        factor = b * gram + c * gram @ gram
        x = a * x + (factor @ x if len(x) <= x.shape[1] else x @ factor)
    return x


@pytest.mark.parametrize(("compute", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"])
def test_two_steps_are_those_of_the_formula(compute: torch.dtype, close: float) -> None:
    torch.manual_seed(1)
    weights = Weights(SHAPE, compute=compute)
    weights.initialize(1)
    weights.make_gradients()
    expected = weights.hidden.double().clone()
    momentum = torch.zeros_like(expected)
    row_squares: dict[int, torch.Tensor] = {}
    optimizer = muon.make(weights, RunSettings(weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = RATE
    for _ in range(2):
        weights.matrices.grad.normal_()
        gradient = weights.hidden.grad.double().clone()
        optimizer.step()
        momentum.lerp_(gradient, 1 - muon.MOMENTUM)
        direction = gradient.lerp(momentum, muon.MOMENTUM)
        for stack in stacks(SHAPE):
            for layer in range(SHAPE.layers):
                start, size = stack.start + layer * stack.stride, stack.rows * stack.columns
                update = orthogonal(direction[start : start + size].view(stack.rows, stack.columns))
                squares = update.square().mean(1, keepdim=True)
                known = row_squares.setdefault(start, torch.zeros_like(squares))
                known.lerp_(squares, 1 - muon.ROW_DECAY)
                even = update / known.sqrt()
                even *= update.norm() / even.norm() * muon.UPDATE_SIZE * math.sqrt(max(update.shape))
                weight = expected[start : start + size].view(stack.rows, stack.columns)
                weight.mul_(1 - RATE * 0.1).sub_(RATE * even)
        changed = (weights.hidden.double() - expected).abs().max() / RATE
        assert changed < close * muon.UPDATE_SIZE * math.sqrt(80)
