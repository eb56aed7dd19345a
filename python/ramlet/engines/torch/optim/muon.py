"""Muon for the matrices inside layers: momentum, made orthogonal. AdamW for embeddings and gains.

    update = orthogonal factor of (gradient + momentum), every row divided by its running root mean square (NorMuon)
    weight = (1 - lr * weight_decay) * weight - lr * 0.2 * sqrt(longer side) * update

The factor 0.2 sqrt(longer side) makes updates as large as AdamW's, so that one learning rate serves both. Queries,
keys, values, gate and up are matrices of their own. Embeddings have no weight decay. The states are one moment and a
number per row, half of AdamW's. Several ranks divide the matrices among them (`shares.py`) and send each other the
results. What was tried: docs/design/recipe.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters
from ramlet.engines.plan import Choice
from ramlet.engines.torch.optim import adamw, native
from ramlet.engines.torch.optim.adamw import AdamW
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
from ramlet.engines.torch.optim.polar import COEFFICIENTS, MARGIN, orthogonalize
from ramlet.engines.torch.optim.shares import Share, shares
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.sizes import BYTES, Stack, flat_elements, hidden_start, stacks
from ramlet.engines.torch.weights import Weights
from ramlet.model.shape import Shape

WEIGHTS = ("fp32",)
CAPTURABLE = True
Rate = float | Tensor
"""A tensor if the step is captured in a CUDA graph."""

MOMENTUM = 0.95
ROW_DECAY = 0.95
UPDATE_SIZE = 0.2
TINY = 1e-12
ELEMENTS_AT_ONCE = 40 << 20
"""On a GPU, of the matrices that are orthogonalized together; their products are faster the more there are."""

Views = tuple[Tensor, Tensor, Tensor]
"""Weights, directions and mean squares of rows of some matrices: (count, rows, columns), the last with one column."""


def state_bytes(shape: Shape, item: int) -> int:
    matrices, gains = flat_elements(shape)
    start = hidden_start(shape)
    return (matrices - start) * item + row_bytes(shape) + 2 * (start * item + gains * 4)


def scratch_bytes(shape: Shape, choice: Choice, device: str, threads: int) -> int:
    """Of a step: the matrices in the precision of the products, twice, what is squared, and the update in fp32."""
    sizes = [(stack.rows, stack.columns) for stack in stacks(shape)]
    if device == "cpu" and choice.weights == "fp32":
        return native.muon_scratch_bytes(sizes * shape.layers, threads)
    if device == "cpu":  # one matrix at a time; its direction and its update in fp32
        return max(native.muon_scratch_bytes([each], threads) + 2 * 4 * math.prod(each) for each in sizes)
    most = 0
    for batch in packed([(*size, shape.layers) for size in sizes]):
        counts = [(*sizes[number], some.stop - some.start) for number, some in batch]
        elements = sum(rows * columns * count for rows, columns, count in counts)
        squared = sum(min(rows, columns) ** 2 * count for rows, columns, count in counts)
        largest = max(rows * columns * count for rows, columns, count in counts)
        most = max(most, 2 * (elements + squared) * BYTES[choice.compute] + 4 * largest)
    return most


def row_bytes(shape: Shape) -> int:
    """Of the mean squares of rows."""
    return _rows(shape) * 4


def _rows(shape: Shape) -> int:
    return sum(stack.rows for stack in stacks(shape)) * shape.layers


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
        self._ranks = TorchRanks()
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
            state.update(self._new_momentum(hidden))
            state["row_squares"] = torch.zeros(_rows(self._shape), device=hidden.device)
        # The scale of a gradient does not change its orthogonal factor, only its weight in the momentum.
        self._add_to_momentum(hidden.grad, state, grad_scale)
        rate, keep = group["lr"], 1 - group["lr"] * group["weight_decay"]
        every = shares(self._shape, self._ranks.world)
        views = list(self._views(every[self._ranks.rank], hidden, hidden.grad, state["row_squares"]))
        if hidden.device.type == "cpu":
            self._native_update(views, hidden, rate, keep)
        else:
            for batch in packed([(weights.shape[1], weights.shape[2], len(weights)) for weights, _, _ in views]):
                self._update([_some(views[number], some) for number, some in batch], rate, keep)
        if self._ranks.world > 1:
            self._exchange(every, hidden, state["row_squares"])

    def divide(self, ranks: TorchRanks) -> None:
        """From here on each rank orthogonalizes its share; all call `step` with the same gradients."""
        self._ranks = ranks

    def _new_momentum(self, hidden: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(hidden)}

    def _add_to_momentum(self, gradient: Tensor, state: dict[str, Tensor], grad_scale: float) -> None:
        """The gradient becomes the direction of the step: it looks ahead by one step of the momentum (Nesterov)."""
        momentum = state["momentum"]
        momentum.lerp_(gradient if grad_scale == 1.0 else gradient.mul_(grad_scale), 1 - MOMENTUM)
        gradient.lerp_(momentum, MOMENTUM)

    def _views(self, share: Share, hidden: Tensor, gradient: Tensor, row_squares: Tensor) -> Iterator[Views]:
        """Of a share's matrices, for each stack."""
        layers = self._shape.layers
        for stack, some, squares in self._stacks(share, row_squares):
            if some:
                views = (_view(hidden, stack, layers), _view(gradient, stack, layers), squares)
                yield _some(views, slice(some.start, some.stop))

    def _stacks(self, share: Share, row_squares: Tensor) -> Iterator[tuple[Stack, range, Tensor]]:
        """Every stack, the layers of it that are in the share, and the mean squares of the rows of all layers."""
        layers, first = self._shape.layers, 0
        for stack, some in zip(stacks(self._shape), share.layers):
            yield stack, some, row_squares[first : first + stack.rows * layers].view(layers, stack.rows, 1)
            first += stack.rows * layers

    def _exchange(self, every: list[Share], hidden: Tensor, row_squares: Tensor) -> None:
        """Each rank's weights and mean squares to all: in place, without scratch memory."""
        self._ranks.spread([hidden[share.start : share.end] for share in every])
        for _, mine, squares in self._stacks(every[self._ranks.rank], row_squares):
            squares[: mine.start].zero_()
            squares[mine.stop :].zero_()
        self._ranks.sum(row_squares)  # of one number and zeros: exact

    def _native_update(self, views: list[Views], hidden: Tensor, rate: Rate, keep: Rate) -> None:
        """On a CPU (rust/kernels/muon.rs)."""
        factors = (MARGIN, ROW_DECAY, TINY, float(rate) * UPDATE_SIZE)
        if hidden.dtype == torch.float32:
            hidden.mul_(keep)
            native.muon_update(views, COEFFICIENTS, factors)
            return
        for stack in views:
            for number in range(len(stack[0])):
                weights, direction, row_squares = _some(stack, slice(number, number + 1))
                changes = torch.zeros(weights.shape)
                native.muon_update([(changes, direction.float(), row_squares)], COEFFICIENTS, factors)
                self._subtract(weights, changes.neg_(), keep)

    def _update(self, batch: list[Views], rate: Rate, keep: Rate) -> None:
        """Of matrices of one size, up to transposition."""
        counts = [len(weights) for weights, _, _ in batch]
        sides = sorted(batch[0][0].shape[1:])
        x = torch.empty((sum(counts), *sides), dtype=self._compute, device=batch[0][0].device)
        for part, (_, direction, _) in zip(x.split(counts), batch):
            part.copy_(direction.mT if _is_tall(direction) else direction)
        x.div_(torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32) * MARGIN + TINY)
        for part, (weights, _, row_squares) in zip(orthogonalize(x).split(counts), batch):
            update = part.mT if _is_tall(weights) else part
            norms: Tensor = torch.linalg.vector_norm(update, dim=2, keepdim=True, dtype=torch.float32)
            squares = norms.square() / update.shape[2]
            row_squares.lerp_(squares, 1 - ROW_DECAY)
            # Rows of equal size, and the matrix as large as it was.
            scale = (row_squares + TINY).rsqrt()
            before, after = squares.sum(1, keepdim=True), (squares * scale.square()).sum(1, keepdim=True)
            scale *= ((before + TINY) / (after + TINY)).sqrt()
            scale *= rate * UPDATE_SIZE * math.sqrt(sides[1])
            self._subtract(weights, torch.mul(update, scale, out=torch.empty(weights.shape, device=x.device)), keep)

    def _subtract(self, weights: Tensor, changes: Tensor, keep: Rate) -> None:
        """`weights = keep * weights - changes`; the changes are fp32 and contiguous."""
        weights.mul_(keep).sub_(changes)


def packed(sizes: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, slice]]]:
    """Stacks of (rows, columns, count) matrices, or parts of them, in batches of one size, up to transposition."""
    groups: dict[tuple[int, int], list[list[tuple[int, slice]]]] = {}
    for number, (rows, columns, count) in enumerate(sizes):
        most = max(1, ELEMENTS_AT_ONCE // (rows * columns))
        group = groups.setdefault((min(rows, columns), max(rows, columns)), [[]])
        for start in range(0, count, most):
            some = slice(start, min(start + most, count))
            if sum(each.stop - each.start for _, each in (*group[-1], (number, some))) > most:
                group.append([])
            group[-1].append((number, some))
    return [batch for group in groups.values() for batch in group if batch]


def _some(views: Views, some: slice) -> Views:
    weights, directions, row_squares = (view[some] for view in views)
    return weights, directions, row_squares


def _is_tall(matrices: Tensor) -> bool:
    return matrices.shape[1] > matrices.shape[2]


def _view(flat: Tensor, stack: Stack, layers: int) -> Tensor:
    """(layers, rows, columns)."""
    size, strides = (layers, stack.rows, stack.columns), (stack.stride, stack.columns, 1)
    return flat.as_strided(size, strides, flat.storage_offset() + stack.start)
