"""Muon for the matrices inside layers: momentum, made orthogonal. AdamW for embeddings and gains.

    update = orthogonal factor of (gradient + momentum), every row divided by its running root mean square (NorMuon)
    weight = (1 - lr * weight_decay) * weight - lr * 0.2 * sqrt(longer side) * update

The factor 0.2 sqrt(longer side) makes updates as large as AdamW's, so that one learning rate serves both. Queries,
keys, values, gate and up are matrices of their own. Embeddings have no weight decay. The states are one moment and a
number per row, half of AdamW's. Several ranks divide the matrices among them (`shares.py`) and send each other the
results; in a sharded run each rank updates those that it owns. What was tried: docs/design/recipe.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ramlet.engines import Hyperparameters
from ramlet.engines.constants import COEFFICIENTS, MARGIN, MOMENTUM, ROW_DECAY, TINY, UPDATE_SIZE
from ramlet.engines.plan import Choice
from ramlet.engines.torch.division import Held
from ramlet.engines.torch.kernels import has_triton
from ramlet.engines.torch.optim import adamw, group, native, plain_update, scalar
from ramlet.engines.torch.optim.adamw import AdamW
from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
from ramlet.engines.torch.optim.polar import orthogonalize
from ramlet.engines.torch.optim.shares import Share, share_between, shares
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.sizes import BYTES, Stack, stacks, tensors_of
from ramlet.engines.torch.weights import Weights
from ramlet.model.shape import Shape

WEIGHTS = ("fp32",)
CAPTURABLE = True
WHOLE_MATRICES = True
Rate = float | Tensor
"""A tensor if the step is captured in a CUDA graph."""

ELEMENTS_AT_ONCE = 40 << 20
"""On a GPU, of the matrices that are orthogonalized together; their products are faster the more there are."""


class Views(NamedTuple):
    """Of some matrices, (count, rows, columns) each."""

    weights: Tensor
    gradients: Tensor
    """Or directions, if the momentum is added to them already."""
    momentum: Tensor
    products: Tensor
    """The weights for matrix products, which may be the same."""
    row_squares: Tensor
    """(count, rows, 1)"""


def state_bytes(held: Held, item: int) -> int:
    return held.hidden * item + row_bytes(held.shape) + 2 * (held.embeddings * item + held.gains * 4)


def scratch_bytes(shape: Shape, choice: Choice, device: str, threads: int) -> int:
    """Of a step: the matrices in the precision of the products, twice, what is squared, the scales of rows, and, if
    the weights are rounded stochastically, the update in fp32."""
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
        scales = sum(rows * count for rows, _, count in counts)
        changes = largest if choice.weights != "fp32" else 0
        most = max(most, 2 * (elements + squared) * BYTES[tensors_of(choice.compute)] + 4 * (scales + changes))
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
    return [group("embeddings", weights, 0.0), group("gains", weights, 0.0)]


class Muon(torch.optim.Optimizer):
    def __init__(self, weights: Weights, settings: Hyperparameters, rest: AdamW | AdamW8bit) -> None:
        self._shape = weights.shape
        self._compute = weights.compute.dtype
        self._rest = rest
        self._ranks = TorchRanks()
        sharding, part = weights.sharding, weights.parts["hidden"]
        self._owned: Share | None = None
        """If the states are divided: what this rank owns, and nothing else of which is here."""
        if sharding is not None:
            first = part.whole.start
            self._owned = share_between(self._shape, part.range.start - first, part.range.end - first)
        self._origin = part.range.start - part.weights.storage_offset()
        super().__init__([group("hidden", weights, settings.weight_decay)], {"lr": 0.0})
        # One optimizer to the outside: its groups, its states.
        rest.state = self.state
        self.param_groups += rest.param_groups

    @property
    def is_complete(self) -> bool:
        """With several ranks, each would clear and refresh its share alone."""
        return isinstance(self._rest, AdamW) and self._rest.is_complete and self._ranks.world == 1

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float | Tensor = 1.0) -> Any:
        self._rest.step(grad_scale=grad_scale)
        given = self.param_groups[0]
        (hidden,) = given["params"]
        state = self.state[hidden]
        if not state:
            state.update(self._new_momentum(hidden))
            state["row_squares"] = torch.zeros(_rows(self._shape), device=hidden.device)
        if not self.is_complete:
            # The scale of a gradient does not change its orthogonal factor, only its weight in the momentum.
            self._add_to_momentum(hidden.grad, state, grad_scale)
        rate, keep = given["lr"], 1 - given["lr"] * given["weight_decay"]
        every = shares(self._shape, self._ranks.world)
        mine = self._owned or every[self._ranks.rank]
        momentum = state["momentum"] if self.is_complete else hidden.grad  # of which nothing is read
        flat = (hidden, hidden.grad, momentum, given["products"])
        views = list(self._views(mine, flat, state["row_squares"]))
        if hidden.device.type == "cpu":
            self._native_update(views, hidden, rate, keep)
        else:
            scalars = [scalar(value, hidden.device) for value in (rate * UPDATE_SIZE, keep, grad_scale)]
            sizes = [(each.weights.shape[1], each.weights.shape[2], len(each.weights)) for each in views]
            for batch in packed(sizes):
                self._update([_some(views[number], some) for number, some in batch], *scalars)
        if self._ranks.world > 1:
            if self._owned is None:
                self._ranks.spread([hidden[share.start : share.end] for share in every])
            self._exchange(mine, state["row_squares"])

    def divide(self, ranks: TorchRanks) -> None:
        """From here on each rank orthogonalizes its share; all call `step` with the same gradients."""
        self._ranks = ranks

    def _new_momentum(self, hidden: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(hidden)}

    def _add_to_momentum(self, gradient: Tensor, state: dict[str, Tensor], grad_scale: float | Tensor) -> None:
        """The gradient becomes the direction of the step: it looks ahead by one step of the momentum (Nesterov)."""
        momentum = state["momentum"]
        momentum.lerp_(gradient if grad_scale == 1.0 else gradient.mul_(grad_scale), 1 - MOMENTUM)
        gradient.lerp_(momentum, MOMENTUM)

    def _views(self, share: Share, flat: Sequence[Tensor], row_squares: Tensor) -> Iterator[Views]:
        """Of a share's matrices, for each stack."""
        first = 0 if self._owned is None else share.start
        for stack, some, squares in self._stacks(share, row_squares):
            if some:
                yield Views._make(
                    [*(_view(each, stack, some, first) for each in flat), squares[some.start : some.stop]]
                )

    def _stacks(self, share: Share, row_squares: Tensor) -> Iterator[tuple[Stack, range, Tensor]]:
        """Every stack, the layers of it that are in the share, and the mean squares of the rows of all layers."""
        layers, first = self._shape.layers, 0
        for stack, some in zip(stacks(self._shape), share.layers):
            yield stack, some, row_squares[first : first + stack.rows * layers].view(layers, stack.rows, 1)
            first += stack.rows * layers

    def _exchange(self, mine: Share, row_squares: Tensor) -> None:
        """Each rank's mean squares to all: in place, without scratch memory."""
        for _, layers, squares in self._stacks(mine, row_squares):
            squares[: layers.start].zero_()
            squares[layers.stop :].zero_()
        self._ranks.sum(row_squares)  # of one number and zeros: exact

    def _native_update(self, views: list[Views], hidden: Tensor, rate: Rate, keep: Rate) -> None:
        """On a CPU (rust/kernels/muon.rs)."""
        factors = (MARGIN, ROW_DECAY, TINY, float(rate) * UPDATE_SIZE)
        if hidden.dtype == torch.float32:
            hidden.mul_(keep)
            native.muon_update(
                [(each.weights, each.gradients, each.row_squares) for each in views], COEFFICIENTS, factors
            )
            return
        for stack in views:
            for number in range(len(stack.weights)):
                one = _some(stack, slice(number, number + 1))
                changes = torch.zeros(one.weights.shape)
                native.muon_update([(changes, one.gradients.float(), one.row_squares)], COEFFICIENTS, factors)
                self._subtract(one.weights, changes.neg_(), keep)

    def _update(self, batch: list[Views], rate: Tensor, keep: Tensor, grad_scale: Tensor) -> None:
        """On a GPU, of matrices of one size, up to transposition."""
        kernels = _kernels_for(rate.device.type)
        counts = [len(views.weights) for views in batch]
        sides = sorted(batch[0].weights.shape[1:])
        x = torch.empty((sum(counts), *sides), dtype=self._compute, device=rate.device)
        for part, views in zip(x.split(counts), batch):
            target = part.mT if _is_tall(views.weights) else part
            if self.is_complete:
                kernels.directions(target, views.gradients, views.momentum, grad_scale, MOMENTUM)
            else:
                target.copy_(views.gradients)
        x.div_(torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32) * MARGIN + TINY)
        # Triton's products of fp32 would round to TF32.
        gram = plain_update.gram if x.dtype == torch.float32 else kernels.gram
        for part, views in zip(orthogonalize(x, gram).split(counts), batch):
            update = part.mT if _is_tall(views.weights) else part
            scales = kernels.row_scales(update, views.row_squares, rate, ROW_DECAY, TINY)
            if views.weights.dtype == torch.float32:
                kernels.subtract(views.weights, views.products, update, scales, keep)
            else:
                changes = torch.empty(update.shape, device=x.device)
                self._subtract(views.weights, torch.mul(update, scales[:, :, None], out=changes), keep)

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
    return Views(*(view[some] for view in views))


@cache
def _kernels_for(device: str) -> ModuleType:
    if has_triton(device):
        from ramlet.engines.torch.optim import triton_update

        return triton_update
    return plain_update


def _is_tall(matrices: Tensor) -> bool:
    return matrices.shape[1] > matrices.shape[2]


def _view(flat: Tensor, stack: Stack, layers: range, first: int) -> Tensor:
    """(layers, rows, columns), of a tensor that starts with this element of all matrices."""
    size, strides = (len(layers), stack.rows, stack.columns), (stack.stride, stack.columns, 1)
    return flat.as_strided(size, strides, flat.storage_offset() + stack.start + layers.start * stack.stride - first)
