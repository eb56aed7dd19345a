"""All weights of a model in two flat tensors, their gradients in two more.

    weights = Weights(shape, device="cpu", dtype=torch.float32, compute=torch.bfloat16)
    weights["layers.0.qkv"].master       # a view: (qkv width, width)
    weights.matrices, weights.gains      # everything, flat: one optimizer call each, one norm, one file

Two, because weight decay applies to the matrices and not to the gains of the norms, which are always fp32. Every matrix
starts at a multiple of 256 elements, the block of the 8-bit optimizer. If matrix products have a lower precision than
the stored weights, `compute` is a copy of the matrices in that dtype, refreshed after every step: 2 bytes per
parameter, and no cast in the forward pass. The layers add gradients in place; autograd never sees a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ramlet.engines.constants import initial_deviation, initial_qk_gain
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
    ) -> None:
        self.shape = shape
        places: dict[str, tuple[int, tuple[int, ...]]] = {}
        ends = {1: 0, 2: 0}
        for name, size in layout(shape):
            start = -(-ends[len(size)] // ALIGNMENT) * ALIGNMENT
            places[name] = (start, size)
            ends[len(size)] = start + math.prod(size)
        self.matrices = torch.zeros(ends[2], device=device, dtype=dtype)
        self.gains = torch.zeros(ends[1], device=device, dtype=torch.float32)
        start = hidden_start(shape)
        self.embeddings, self.hidden = self.matrices[:start], self.matrices[start:]
        self.compute = self.matrices
        if compute is not None and compute != dtype:
            self.compute = torch.zeros(ends[2], device=device, dtype=compute)
        self._places = places
        self._weights = {
            name: Weight(name, self._view(self._flat(name), name), self._view(self._flat_compute(name), name))
            for name in places
        }
        self._fp8 = torch.zeros(ends[2], device=device, dtype=FP8) if use_fp8 else None
        if self._fp8 is not None:
            for weight in self:
                if self._is_matrix(weight.name) and fits(*weight.master.shape):
                    weight.fp8 = self._view(self._fp8, weight.name)

    def _view(self, flat: Tensor, name: str) -> Tensor:
        start, size = self._places[name]
        return flat[start : start + math.prod(size)].view(size)

    def _is_matrix(self, name: str) -> bool:
        return len(self._places[name][1]) == 2

    def _flat(self, name: str) -> Tensor:
        return self.matrices if self._is_matrix(name) else self.gains

    def _flat_compute(self, name: str) -> Tensor:
        return self.compute if self._is_matrix(name) else self.gains

    def __getitem__(self, name: str) -> Weight:
        return self._weights[name]

    def __iter__(self) -> Iterator[Weight]:
        return iter(self._weights.values())

    def make_gradients(self) -> None:
        """Allocates gradients, all zero; `GPT.learn` needs them."""
        self.matrices.grad = torch.zeros_like(self.matrices)
        self.gains.grad = torch.zeros_like(self.gains)
        start = hidden_start(self.shape)
        self.embeddings.grad, self.hidden.grad = self.matrices.grad[:start], self.matrices.grad[start:]
        for weight in self:
            flat = self._flat(weight.name).grad
            assert flat is not None
            weight.grad = self._view(flat, weight.name)

    def clear_gradients(self) -> None:
        for flat in self.flat:
            if flat.grad is not None:
                flat.grad.zero_()

    @property
    def flat(self) -> tuple[Tensor, Tensor]:
        """The matrices and the gains, for an optimizer."""
        return self.matrices, self.gains

    def refresh(self) -> None:
        """Updates the copies for matrix products."""
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
        for weight in self:
            if weight.master.dim() == 1:
                of_heads = weight.name.endswith((".norm_q", ".norm_k"))
                weight.master.fill_(initial_qk_gain(self.shape.head_width) if of_heads else 1.0)
                continue
            _fill(weight.master, initial_deviation(weight.name, self.shape.layers), generator)
        for name in ("embedding", "head"):
            if name in self._places:
                # Padding rows of the vocabulary stay 0.
                self[name].master[self.shape.vocab_size :].zero_()
        self.refresh()


def _fill(matrix: Tensor, deviation: float, generator: torch.Generator) -> None:
    rows = max(1, (1 << 20) // matrix.shape[1])
    for start in range(0, matrix.shape[0], rows):
        part = matrix[start : start + rows]
        part.copy_(torch.empty(part.shape).normal_(0.0, deviation, generator=generator))
