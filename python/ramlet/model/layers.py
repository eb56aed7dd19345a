"""The parts of a layer as autograd functions that keep as little as they can for the way back.

A layer keeps, for each token, in the type that products are made in: what came in (width), queries, keys and values
(3 x width), the attention's result (width), the middle (width), gate and up (2 x feed-forward). Norms and the gated
product are made again on the way back, which costs a pass over memory and saves a third of what plain autograd keeps.
Gradients of weights are added where they belong at once (`Weight.grad`), so no second copy of one ever exists.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ramlet.model.weights import Weight

__all__ = ["LAYER_WEIGHTS", "Embed", "FeedForward", "GoBack", "Join", "Layer", "Normed", "Project", "Turn"]


LAYER_WEIGHTS = ("norm_attention", "qkv", "out", "norm_feed_forward", "gate_up", "down")


class Turn(NamedTuple):
    """What the rotary positions need: tables (context, head width / 2) and each token's position."""

    cos: Tensor
    sin: Tensor
    positions: Tensor


class Layer(NamedTuple):
    """A layer's weights and sizes, and the kernels that work on them."""

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


def _grad(weight: Weight) -> Tensor:
    if weight.grad is None:
        raise RuntimeError("this model has no gradients: call weights.make_gradients() first")
    return weight.grad


class Embed(Function):
    """Token ids -> rows of the embedding. `anchor` only tells autograd that something is to be learned."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, ids: Tensor, weight: Weight) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight
        return weight.compute[ids]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        grad = _grad(ctx.weight)
        grad.index_add_(0, ids, slopes[0].to(grad.dtype))
        return None, None, None


class Project(Function):
    """x -> normed -> queries, keys and values, the first two turned by their positions; (tokens, width) each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.layer, ctx.turn = layer, turn
        normed = layer.kernels.norm(x, layer.norm_attention.master, layer.eps)
        qkv = torch.mm(normed, layer.qkv.compute.t())
        layer.kernels.rotate_(qkv, turn.cos, turn.sin, turn.positions, layer.heads + layer.kv_heads)
        head = 2 * turn.cos.shape[1]
        q, k, v = qkv.split((layer.heads * head, layer.kv_heads * head, layer.kv_heads * head), dim=1)
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        layer: Layer = ctx.layer
        turn: Turn = ctx.turn
        slope = torch.cat(slopes, dim=1)
        layer.kernels.rotate_(slope, turn.cos, turn.sin, turn.positions, layer.heads + layer.kv_heads, inverse=True)
        normed = layer.kernels.norm(x, layer.norm_attention.master, layer.eps)
        layer.kernels.accumulate_(_grad(layer.qkv), slope, normed)
        d_normed = torch.mm(slope, layer.qkv.compute, out=normed)
        gain = layer.norm_attention
        return layer.kernels.norm_backward(d_normed, x, gain.master, layer.eps, _grad(gain)), None, None


class Join(Function):
    """x + attended @ out^T: the attention's result goes back into the stream."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, layer: Layer) -> Tensor:
        ctx.save_for_backward(attended)
        ctx.layer = layer
        return torch.addmm(x, attended, layer.out.compute.t())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        (attended,) = ctx.saved_tensors
        layer: Layer = ctx.layer
        layer.kernels.accumulate_(_grad(layer.out), slopes[0], attended)
        return slopes[0], torch.mm(slopes[0], layer.out.compute), None


class FeedForward(Function):
    """x + down(silu(gate(norm(x))) * up(norm(x)))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        normed = layer.kernels.norm(x, layer.norm_feed_forward.master, layer.eps)
        gate_up = torch.mm(normed, layer.gate_up.compute.t())
        ctx.save_for_backward(x, gate_up)
        ctx.layer = layer
        return torch.addmm(x, layer.kernels.gate(gate_up), layer.down.compute.t())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        x, gate_up = ctx.saved_tensors
        layer: Layer = ctx.layer
        gain = layer.norm_feed_forward
        d_act = torch.mm(slopes[0], layer.down.compute)
        act = layer.kernels.gate_backward_(gate_up, d_act)  # gate_up is its own gradient from here on
        layer.kernels.accumulate_(_grad(layer.down), slopes[0], act)
        del act, d_act
        normed = layer.kernels.norm(x, gain.master, layer.eps)
        layer.kernels.accumulate_(_grad(layer.gate_up), gate_up, normed)
        d_normed = torch.mm(gate_up, layer.gate_up.compute, out=normed)
        dx = layer.kernels.norm_backward(d_normed, x, gain.master, layer.eps, _grad(gain))
        return dx.add_(slopes[0]), None


class Normed(Function):
    """The norm before the head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Weight, eps: float, kernels: ModuleType) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gain, ctx.eps, ctx.kernels = gain, eps, kernels
        return kernels.norm(x, gain.master, eps)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.kernels.norm_backward(slopes[0], x, ctx.gain.master, ctx.eps, _grad(ctx.gain)), None, None, None


class GoBack(Function):
    """Where the way back begins: `GoBack.apply(hidden, slope).backward()` is `hidden.backward(slope)`.

    To check a gradient that it is given torch imports sympy, 46 MB; a number needs none. And neither tensor is held
    longer than it is used.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope, None
