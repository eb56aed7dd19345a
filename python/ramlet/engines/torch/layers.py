"""The parts of a layer as autograd functions that keep as little as possible for the backward pass.

For each token a layer keeps, in the dtype of matrix products: its input (width), queries, keys and values (3 x width),
the attention's result (width), the input of the feed-forward block (width), gate and up (2 x feed-forward). Norms and
the gated product are recomputed in the backward pass, which costs a pass over memory and saves a third of what plain
autograd keeps. Gradients of weights are added to `Weight.grad` directly, so there is never a second copy. `unit` is the
number of tokens whose gradients are summed before that; 0 means all (order.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ramlet.engines.torch import fp8
from ramlet.engines.torch.exchange import Exchange
from ramlet.engines.torch.kernels.plain import Dropout
from ramlet.engines.torch.weights import Weight

LAYER_WEIGHTS = ("norm_attention", "qkv", "out", "norm_feed_forward", "gate_up", "down")
QK_NORMS = ("norm_q", "norm_k")


class Rotary(NamedTuple):
    """Rotary positions: the tables (context, head width / 2) and the position of each token."""

    cos: Tensor
    sin: Tensor
    positions: Tensor


class Layer(NamedTuple):
    """A layer's weights and sizes, and its kernels."""

    norm_attention: Weight
    qkv: Weight
    out: Weight
    norm_feed_forward: Weight
    gate_up: Weight
    down: Weight
    heads: int
    kv_heads: int
    eps: float
    kernels: ModuleType
    norm_q: Weight | None = None
    norm_k: Weight | None = None
    """Of QK-norm."""
    use_fp8: bool = False
    """Whether products of the forward pass use `Weight.fp8`."""
    keeps_qk: bool = False
    """Whether queries and keys are kept after QK-norm (attention.py)."""


def grad_of(weight: Weight) -> Tensor:
    if weight.grad is None:
        raise RuntimeError("this model has no gradients: call weights.make_gradients() first")
    return weight.grad


class HeldGrads:
    """The embedding's gradients of a group's micro-batches so far, added when the group is complete (order.py)."""

    def __init__(self, tokens: int, width: int, dtype: torch.dtype) -> None:
        self._ids = torch.zeros(tokens, dtype=torch.int64)
        self._rows = torch.zeros((tokens, width), dtype=dtype)
        self._count = 0
        self._unit = 0

    def hold(self, grad: Tensor, ids: Tensor, rows: Tensor, unit: int) -> None:
        """Holds these rows, and adds all of them to `grad` when the group is complete."""
        if self._count + len(ids) > len(self._ids):
            self.flush(grad)
        self._unit = unit
        if len(ids) > len(self._ids):
            return _add_rows(grad, ids, rows, unit)
        end = self._count + len(ids)
        self._ids[self._count : end] = ids
        self._rows[self._count : end] = rows
        self._count = end
        if end == len(self._ids):
            self.flush(grad)
        return None

    def flush(self, grad: Tensor) -> None:
        """Adds what is held: the last group of a step may be smaller."""
        _add_rows(grad, self._ids[: self._count], self._rows[: self._count], self._unit)
        self._count = 0


def _add_rows(grad: Tensor, ids: Tensor, rows: Tensor, unit: int) -> None:
    at_once = unit or max(1, len(ids))
    for some, part in zip(ids.split(at_once), rows.split(at_once)):
        grad.index_add_(0, some, part.to(grad.dtype))


class Embed(Function):
    """Token ids -> rows of the embedding. `anchor` only makes autograd record a backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, ids: Tensor, weight: Weight, unit: int, held: HeldGrads | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.unit, ctx.held = weight, unit, held
        return weight.compute[ids]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, None, None, None]:
        (ids,) = ctx.saved_tensors
        add = _add_rows if ctx.held is None else ctx.held.hold
        add(grad_of(ctx.weight), ids, grad_outputs[0], ctx.unit)
        return None, None, None, None, None


class Entering(Function):
    """x before a layer, if ranks exchange gradients or weights: in the backward pass, the layer is done here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, layer: int) -> Tensor:
        ctx.exchange, ctx.layer = exchange, layer
        return x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        ctx.exchange.leave(ctx.layer)
        return grad_outputs[0], None, None


class Drop(Function):
    """Dropout of the embedding. The mask is not kept but computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Dropout, kernels: ModuleType) -> Tensor:
        ctx.mask, ctx.kernels = mask, kernels
        return kernels.dropout(x, mask)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return ctx.kernels.dropout(grad_outputs[0], ctx.mask), None, None


def _added(x: Tensor, result: Tensor, weight: Weight, mask: Dropout | None, kernels: ModuleType) -> Tensor:
    """x + result @ weight^T, with dropout of the product."""
    if mask is None:
        return torch.addmm(x, result, weight.compute.t())
    branch = torch.mm(result, weight.compute.t())
    kernels.dropout_add_(branch, x, mask)
    return branch


def _branch_grad(grad: Tensor, mask: Dropout | None, kernels: ModuleType) -> Tensor:
    """The gradient of `_added`'s product from that of its result."""
    return grad if mask is None else kernels.dropout(grad, mask)


def _normed_product(x: Tensor, gain: Weight, weight: Weight, layer: Layer) -> Tensor:
    """norm(x) @ weight^T."""
    if layer.use_fp8 and weight.fp8 is not None:
        return fp8.product(layer.kernels.norm_fp8(x, gain.master, layer.eps, fp8.INPUT_SCALE), weight.fp8)
    return torch.mm(layer.kernels.norm(x, gain.master, layer.eps), weight.compute.t())


class Project(Function):
    """x -> norm -> queries, keys and values, the first two rotated by their positions; (tokens, width) each; and x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, rotary: Rotary, unit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.rotary = rotary
        qkv, x = QKV.forward(ctx, x, layer, unit)
        layer.kernels.rotate_(qkv, rotary.cos, rotary.sin, rotary.positions, layer.heads + layer.kv_heads)
        head = 2 * rotary.cos.shape[1]
        q, k, v = qkv.split((layer.heads * head, layer.kv_heads * head, layer.kv_heads * head), dim=1)
        return q, k, v, x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        layer: Layer = ctx.layer
        rotary: Rotary = ctx.rotary
        *parts, d_x = grad_outputs
        d_qkv = torch.cat(parts, dim=1)
        heads = layer.heads + layer.kv_heads
        layer.kernels.rotate_(d_qkv, rotary.cos, rotary.sin, rotary.positions, heads, inverse=True)
        return *QKV.backward(ctx, d_qkv, d_x), None


class QKV(Function):
    """x -> norm -> queries, keys and values as one matrix, (tokens, heads x head width); and x.

    What goes on with x returns its gradient here, so that the backward pass of the norm adds it in the same pass over
    memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, unit: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.layer, ctx.unit = layer, unit
        return _normed_product(x, layer.norm_attention, layer.qkv, layer), x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        layer: Layer = ctx.layer
        normed = layer.kernels.norm(x, layer.norm_attention.master, layer.eps)
        layer.kernels.accumulate_(grad_of(layer.qkv), grad_outputs[0], normed, ctx.unit)
        d_normed = torch.mm(grad_outputs[0], layer.qkv.compute, out=normed)
        gain = layer.norm_attention
        grads = (grad_of(gain), ctx.unit, grad_outputs[1])
        return layer.kernels.norm_backward(d_normed, x, gain.master, layer.eps, *grads), None, None


class AttentionOut(Function):
    """x + attended @ out^T: adds the attention's result to the residual stream, with dropout if there is a mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, layer: Layer, unit: int, mask: Dropout | None) -> Tensor:
        ctx.save_for_backward(attended)
        ctx.layer, ctx.unit, ctx.mask = layer, unit, mask
        return _added(x, attended, layer.out, mask, layer.kernels)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (attended,) = ctx.saved_tensors
        layer: Layer = ctx.layer
        d_branch = _branch_grad(grad_outputs[0], ctx.mask, layer.kernels)
        layer.kernels.accumulate_(grad_of(layer.out), d_branch, attended, ctx.unit)
        return grad_outputs[0], torch.mm(d_branch, layer.out.compute), None, None, None


class FeedForward(Function):
    """x + down(silu(gate(norm(x))) * up(norm(x))), with dropout of what is added if there is a mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, unit: int, mask: Dropout | None) -> Tensor:
        gate_up = _normed_product(x, layer.norm_feed_forward, layer.gate_up, layer)
        ctx.save_for_backward(x, gate_up)
        ctx.layer, ctx.unit, ctx.mask = layer, unit, mask
        return _added(x, layer.kernels.gate(gate_up), layer.down, mask, layer.kernels)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        x, gate_up = ctx.saved_tensors
        layer: Layer = ctx.layer
        gain = layer.norm_feed_forward
        d_branch = _branch_grad(grad_outputs[0], ctx.mask, layer.kernels)
        d_act = torch.mm(d_branch, layer.down.compute)
        act = layer.kernels.gate_backward_(gate_up, d_act)  # from here on gate_up is its own gradient
        layer.kernels.accumulate_(grad_of(layer.down), d_branch, act, ctx.unit)
        del act, d_act, d_branch
        normed = layer.kernels.norm(x, gain.master, layer.eps)
        layer.kernels.accumulate_(grad_of(layer.gate_up), gate_up, normed, ctx.unit)
        d_normed = torch.mm(gate_up, layer.gate_up.compute, out=normed)
        grads = (grad_of(gain), ctx.unit, grad_outputs[0])
        return layer.kernels.norm_backward(d_normed, x, gain.master, layer.eps, *grads), None, None, None


class Normed(Function):
    """The norm before the head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Weight, eps: float, kernels: ModuleType, unit: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gain, ctx.eps, ctx.kernels, ctx.unit = gain, eps, kernels, unit
        return kernels.norm(x, gain.master, eps)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        dx = ctx.kernels.norm_backward(grad_outputs[0], x, ctx.gain.master, ctx.eps, grad_of(ctx.gain), ctx.unit)
        return dx, None, None, None, None


class BackwardFrom(Function):
    """Starts the backward pass: `BackwardFrom.apply(hidden, grad).backward()` is `hidden.backward(grad)`.

    To check a given gradient torch imports sympy, 46 MB; for a scalar it does not. And neither tensor is kept longer
    than it is used.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = ctx.saved_tensors
        return grad, None
