"""All weights of a model in two flat tensors, their gradients in two more.

    weights = Weights(shape, device="cpu", dtype=torch.float32, compute=torch.bfloat16)
    weights["layers.0.qkv"].master       # a view: (qkv width, width)
    weights.matrices, weights.gains      # everything, flat: one optimizer call each, one norm, one file

Two, because weight decay applies to the matrices and not to the gains of the norms, which are always fp32. Every matrix
starts at a multiple of 256 elements, the block of the 8-bit optimizer. If matrix products have a lower precision than
the stored weights, `compute` is a copy of the matrices in that dtype, refreshed after every step: 2 bytes per
parameter, and no cast in the forward pass. The layers add gradients in place; autograd never sees a weight.

If the run is sharded, this rank's optimizer updates only a part of the matrices; gradients of a layer, and then its
weights, exist only while they are needed, in the buffers of exchange.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ramlet.engines.constants import initial_deviation, initial_qk_gain
from ramlet.engines.torch.division import Range
from ramlet.engines.torch.exchange import EMBEDDING, HEAD, Exchange, Gathered, Part, Reduced, Sharding, Unit
from ramlet.engines.torch.fp8 import WEIGHT_SCALE, fits
from ramlet.engines.torch.kernels import kernels_for
from ramlet.engines.torch.kernels.plain import FP8
from ramlet.engines.torch.sizes import ALIGNMENT, hidden_start
from ramlet.model.shape import Shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By the names that settings use."""


@dataclass
class Weight:
    """One matrix or gain: views into the flat tensors."""

    name: str
    master: Tensor
    """What the optimizer updates."""
    compute: Tensor
    """Used in matrix products; the master itself if the dtypes are the same."""
    grad: Tensor | None = None
    fp8: Tensor | None = None
    """For products of the forward pass (fp8.py)."""


def layout(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of every weight, in memory order. Gains have one dimension."""
    yield "embedding", (shape.padded_vocab, shape.width)
    if not shape.tied:
        yield "head", (shape.padded_vocab, shape.width)
    for layer in range(shape.layers):
        yield f"layers.{layer}.norm_attention", (shape.width,)
        yield f"layers.{layer}.qkv", (shape.qkv_width, shape.width)
        yield f"layers.{layer}.out", (shape.width, shape.queries_width)
        if shape.qk_norm:
            yield f"layers.{layer}.norm_q", (shape.head_width,)
            yield f"layers.{layer}.norm_k", (shape.head_width,)
        yield f"layers.{layer}.norm_feed_forward", (shape.width,)
        yield f"layers.{layer}.gate_up", (2 * shape.feed_forward, shape.width)
        yield f"layers.{layer}.down", (shape.width, shape.feed_forward)
    yield "norm", (shape.width,)


class Weights:
    """All weights; `weights[name]` is one of them."""

    def __init__(
        self,
        shape: Shape,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute: torch.dtype | None = None,
        use_fp8: bool = False,
        sharding: Sharding | None = None,
    ) -> None:
        self.shape = shape
        self.sharding = sharding
        places: dict[str, tuple[int, tuple[int, ...]]] = {}
        ends = {1: 0, 2: 0}
        for name, size in layout(shape):
            start = -(-ends[len(size)] // ALIGNMENT) * ALIGNMENT
            places[name] = (start, size)
            ends[len(size)] = start + math.prod(size)
        self._places = places
        self._total = ends[2]
        held = ends[2]
        if sharding is not None and sharding.divides_weights:
            held = sum(each.size for each in sharding.mine.values())
        self.matrices = torch.zeros(held, device=device, dtype=dtype)
        self.gains = torch.zeros(ends[1], device=device, dtype=torch.float32)
        self.compute = self.matrices
        self._gathered: Gathered | None = None
        self.exchange: Exchange | None = None
        """If the gradients or the weights are divided among ranks."""
        self.parts = self._parts()
        if sharding is not None and sharding.divides_weights:
            made = partial(torch.zeros, device=device, dtype=compute or dtype)
            self._gathered = Gathered(shape, sharding, self.parts, made)
        elif compute is not None and compute != dtype:
            self.compute = torch.zeros(ends[2], device=device, dtype=compute)
            self.parts = self._parts()
        self._weights = {name: self._weight(name) for name in places}
        self._fp8 = torch.zeros(ends[2], device=device, dtype=FP8) if use_fp8 else None
        if self._fp8 is not None:
            for weight in self:
                if self._is_matrix(weight.name) and fits(*weight.master.shape):
                    weight.fp8 = self._view(self._fp8, 0, weight.name)

    def _parts(self) -> dict[str, Part]:
        """What an optimizer updates here, by the names of its groups; tensors that keep their gradients."""
        start = hidden_start(self.shape)
        whole = {
            "matrices": Range(0, self._total),
            "embeddings": Range(0, start),
            "hidden": Range(start, self._total),
        }
        if self.sharding is None:
            some = {name: (self.matrices[each.start : each.end], each) for name, each in whole.items()}
            some["matrices"] = self.matrices, whole["matrices"]
        elif self.sharding.divides_weights:
            flat = self.matrices.split([each.size for each in self.sharding.mine.values()])
            some = dict(zip(self.sharding.mine, zip(flat, self.sharding.mine.values())))
        else:
            some = {name: (self.matrices[each.start : each.end], each) for name, each in self.sharding.mine.items()}
        return {
            name: Part(
                each,
                whole[name],
                flat,
                flat if self.compute is self.matrices else self.compute[each.start : each.end],
            )
            for name, (flat, each) in some.items()
        }

    def _weight(self, name: str) -> Weight:
        if not self._is_matrix(name):
            return Weight(name, self._view(self.gains, 0, name), self._view(self.gains, 0, name))
        if self._gathered is None:
            return Weight(name, self._view(self.matrices, 0, name), self._view(self.compute, 0, name))
        gathered = self._view(*self._gathered.flat(_unit_of(name)), name)
        return Weight(name, gathered, gathered)

    def _view(self, flat: Tensor, first: int, name: str) -> Tensor:
        """A weight in a flat tensor, which starts with this element of all matrices or gains."""
        start, size = self._places[name]
        return flat[start - first : start - first + math.prod(size)].view(size)

    def place(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Where a weight starts in its flat tensor, and its shape."""
        return self._places[name]

    def _is_matrix(self, name: str) -> bool:
        return len(self._places[name][1]) == 2

    def __getitem__(self, name: str) -> Weight:
        return self._weights[name]

    def __iter__(self) -> Iterator[Weight]:
        return iter(self._weights.values())

    @property
    def embeddings(self) -> Tensor:
        return self.parts["embeddings"].weights

    @property
    def hidden(self) -> Tensor:
        """The matrices inside layers."""
        return self.parts["hidden"].weights

    def make_gradients(self) -> None:
        """Allocates gradients, all zero; `GPT.learn` needs them."""
        self.gains.grad = torch.zeros_like(self.gains)
        sharding = self.sharding
        reduced = None
        if sharding is not None and sharding.divides_gradients:
            for part in self.parts.values():
                part.weights.grad = torch.zeros_like(part.weights)
            made = partial(torch.zeros, device=self.gains.device, dtype=self.matrices.dtype)
            reduced = Reduced(self.shape, sharding, self.parts, made)
            self.exchange = Exchange(self.shape, reduced, self._gathered)
        else:
            self.matrices.grad = torch.zeros_like(self.matrices)
            for part in self.parts.values():
                part.weights.grad = self.matrices.grad[part.range.start : part.range.end]
        for weight in self:
            name = weight.name
            if not self._is_matrix(name):
                weight.grad = self._view(self.gains.grad, 0, name)
            elif reduced is not None:
                weight.grad = self._view(*reduced.flat(_unit_of(name)), name)
            else:
                assert self.matrices.grad is not None
                weight.grad = self._view(self.matrices.grad, 0, name)

    def clear_gradients(self) -> None:
        for grad in self.gradients():
            grad.zero_()

    def gradients(self) -> list[Tensor]:
        """All that this rank stores between micro-batches."""
        stored: Iterable[Tensor] = (self.matrices, self.gains)
        if self.sharding is not None and self.sharding.divides_gradients:
            stored = (*(part.weights for part in self.parts.values()), self.gains)
        return [flat.grad for flat in stored if flat.grad is not None]

    @property
    def flat(self) -> tuple[Tensor, Tensor]:
        """The matrices and the gains as they are stored here."""
        return self.matrices, self.gains

    def updated(self) -> None:
        """After an optimizer step: what is on all ranks is sent to them."""
        sharding = self.sharding
        if sharding is not None and not sharding.divides_weights:
            for name in self.parts:
                sharding.ranks.spread([self.matrices[owned[name].start : owned[name].end] for owned in sharding.owners])
        self.refresh()

    def refresh(self) -> None:
        """Updates the copies for matrix products."""
        if self.exchange is not None:
            self.exchange.forget()
        if self.compute is not self.matrices:
            self.compute.copy_(self.matrices)
        self.refresh_fp8()

    def refresh_fp8(self) -> None:
        """From the copy for matrix products, which some optimizers write themselves."""
        if self._fp8 is not None:
            kernels_for(self._fp8.device).to_fp8(self.compute, WEIGHT_SCALE, self._fp8)

    def initialize(self, seed: int) -> None:
        """Normal with std 0.02, scaled down with depth for what writes into the residual stream; gains 1, except those
        of QK-norm.

        Generated on the CPU in pieces: the same weights on any device, without a second copy.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, (start, size) in self._places.items():
            if len(size) == 1:
                of_heads = name.endswith((".norm_q", ".norm_k"))
                self[name].master.fill_(initial_qk_gain(self.shape.head_width) if of_heads else 1.0)
                continue
            deviation = initial_deviation(name, self.shape.layers)
            rows = max(1, (1 << 20) // size[1])
            for first in range(0, size[0], rows):
                values = torch.empty((min(rows, size[0] - first), size[1]))
                values.normal_(0.0, deviation, generator=generator)
                if name in (EMBEDDING, HEAD):
                    # Padding rows of the vocabulary stay 0.
                    values[max(0, self.shape.vocab_size - first) :].zero_()
                self._store(start + first * size[1], values.view(-1))
        self.refresh()

    def _store(self, start: int, values: Tensor) -> None:
        """Stores what belongs here of some elements of the flat matrices."""
        given = Range(start, start + values.numel())
        if self._gathered is None:
            self.matrices[given.start : given.end].copy_(values)
            return
        for part in self.parts.values():
            mine = given.within(part.range)
            place = part.weights[mine.start - part.range.start : mine.end - part.range.start]
            place.copy_(values[mine.start - start : mine.end - start])


def _unit_of(name: str) -> Unit:
    """The unit of a matrix in an exchange."""
    return name if name in (EMBEDDING, HEAD) else int(name.split(".")[1])
