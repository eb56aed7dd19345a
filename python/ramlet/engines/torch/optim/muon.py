"""Muon for the matrices inside layers: momentum, made orthogonal. AdamW for embeddings and gains.

    update = orthogonal factor of (gradient + momentum), every row divided by its running root mean square (NorMuon)
    weight = (1 - lr * weight_decay) * weight - lr * 0.2 * sqrt(longer side) * update

The factor 0.2 sqrt(longer side) makes updates as large as AdamW's, so that one learning rate serves both. Queries,
keys, values, gate and up are matrices of their own. Embeddings have no weight decay. The states are one moment and a
number per row, half of AdamW's. What was tried: docs/design/recipe.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters
from ramlet.engines.torch.optim import adamw, native
from ramlet.engines.torch.optim.adamw import AdamW
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
from ramlet.engines.torch.optim.polar import COEFFICIENTS, MARGIN, orthogonalize
from ramlet.engines.torch.sizes import BYTES, Stack, flat_elements, hidden_start, stacks
from ramlet.engines.torch.weights import Weights
from ramlet.model.shape import Shape

WEIGHTS = ("fp32",)

MOMENTUM = 0.95
ROW_DECAY = 0.95
UPDATE_SIZE = 0.2
TINY = 1e-12
ELEMENTS_AT_ONCE = 8 << 20
"""On a GPU, of the matrices that are orthogonalized together."""


def state_bytes(shape: Shape, item: int) -> int:
    matrices, gains = flat_elements(shape)
    start = hidden_start(shape)
    return (matrices - start) * item + _rows(shape) * 4 + 2 * (start * item + gains * 4)


def scratch_bytes(shape: Shape, compute: str, device: str, threads: int) -> int:
    """Of a step: the matrices in the precision of the products, twice, what is squared, and the update in fp32."""
    if device == "cpu":
        return native.muon_scratch_bytes([stack[1:3] for stack in stacks(shape)] * shape.layers, threads)
    most = 0
    for stack in stacks(shape):
        elements, squared = stack.rows * stack.columns, min(stack.rows, stack.columns) ** 2
        count = _at_once(shape.layers, elements)
        most = max(most, count * (2 * (elements + squared) * BYTES[compute] + elements * 4))
    return most


def _rows(shape: Shape) -> int:
    return sum(stack.rows for stack in stacks(shape)) * shape.layers


def _at_once(count: int, elements: int) -> int:
    return max(1, min(count, ELEMENTS_AT_ONCE // elements))


def make(weights: Weights, settings: Hyperparameters) -> Muon:
    return Muon(weights, settings, adamw.over(others(weights), settings))


def others(weights: Weights) -> list[dict[str, Any]]:
    """Groups of everything outside of layers' matrices."""
    named = {"embeddings": weights.embeddings, "gains": weights.gains}
    return [{"name": name, "params": [flat], "weight_decay": 0.0} for name, flat in named.items()]


class Muon(torch.optim.Optimizer):
    def __init__(self, weights: Weights, settings: Hyperparameters, rest: AdamW | AdamW8bit) -> None:
        self._shape = weights.shape
        self._compute = weights.compute.dtype
        self._rest = rest
        hidden = {"params": [weights.hidden], "name": "hidden", "weight_decay": settings.weight_decay}
        super().__init__([hidden], {"lr": 0.0})
        # One optimizer to the outside: its groups, its states.
        rest.state = self.state
        self.param_groups += rest.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> Any:
        self._rest.step(grad_scale=grad_scale)
        group = self.param_groups[0]
        (hidden,) = group["params"]
        state = self.state[hidden]
        if not state:
            state["momentum"] = torch.zeros_like(hidden)
            state["row_squares"] = torch.zeros(_rows(self._shape), device=hidden.device)
        gradient, momentum = hidden.grad, state["momentum"]
        # The scale of a gradient does not change its orthogonal factor, only its weight in the momentum.
        momentum.lerp_(gradient if grad_scale == 1.0 else gradient.mul_(grad_scale), 1 - MOMENTUM)
        gradient.lerp_(momentum, MOMENTUM)
        rate, decay = group["lr"], group["weight_decay"]
        if rate and decay:
            hidden.mul_(1 - rate * decay)
        batches = self._batches(hidden, gradient, state["row_squares"])
        if hidden.device.type == "cpu":
            factors = (MARGIN, ROW_DECAY, TINY, rate * UPDATE_SIZE)
            native.muon_update(list(batches), COEFFICIENTS, factors)
            return
        for weights, updates, row_squares in batches:
            self._update(weights, updates, row_squares, rate)

    def _batches(self, hidden: Tensor, gradient: Tensor, row_squares: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Views, (count, rows, columns) each, of which the last has one column."""
        layers, first = self._shape.layers, 0
        for stack in stacks(self._shape):
            count = _at_once(layers, stack.rows * stack.columns)
            squares = row_squares[first : first + stack.rows * layers].view(layers, stack.rows, 1)
            first += stack.rows * layers
            views = (_view(hidden, stack, layers), _view(gradient, stack, layers), squares)
            yield from zip(*(view.split(count) for view in views))

    def _update(self, weights: Tensor, direction: Tensor, row_squares: Tensor, rate: float) -> None:
        """Of (count, rows, columns) each. On a CPU this is one native call for all matrices (rust/kernels/muon.rs)."""
        tall = weights.shape[1] > weights.shape[2]
        given = direction.mT if tall else direction
        x = torch.empty(given.shape, dtype=self._compute, device=given.device).copy_(given)
        x.div_(torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32) * MARGIN + TINY)
        update = orthogonalize(x)
        update = update.mT if tall else update
        # A copy also of fp32, where `float()` would be the update itself.
        squares = update.to(torch.float32, copy=True).square_().mean(2, keepdim=True)
        row_squares.lerp_(squares, 1 - ROW_DECAY)
        # Rows of equal size, and the matrix as large as it was.
        scale = (row_squares + TINY).rsqrt()
        before, after = squares.sum(1, keepdim=True), (squares * scale.square()).sum(1, keepdim=True)
        scale *= ((before + TINY) / (after + TINY)).sqrt()
        weights.sub_(update * (scale * (rate * UPDATE_SIZE * math.sqrt(max(weights.shape[1:])))))


def _view(flat: Tensor, stack: Stack, layers: int) -> Tensor:
    """(layers, rows, columns)."""
    size, strides = (layers, stack.rows, stack.columns), (stack.stride, stack.columns, 1)
    return flat.as_strided(size, strides, flat.storage_offset() + stack.start)
