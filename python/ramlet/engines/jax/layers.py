"""A layer of the model: forward, what is kept of it, and backward.

For each token a layer keeps, in the precision of matrix products: its input (width), queries, keys and values, the
attention's result, the input of the feed-forward block, gate and up; with activation checkpointing, its input alone.
Norms, the gated product and the attention's weights are computed again in the backward pass. `jax.checkpoint` could
choose the same, but gradients of weights would then be one whole tree per micro-batch next to that of the step: here
`backward` returns those of one layer, which are added to the step's in place.

Activations are (sequences, tokens, features). Products are computed in the precision of their activations; norms,
rotary positions and gates in fp32, rounded once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.weights import Tree
from ramlet.model.shape import Shape

MOST_SCORES = 16 << 20
"""Elements of attention weights at once on a CPU: more sequences attend one after another."""


class Rotary(NamedTuple):
    """cos and sin for every token, (tokens, head width / 2), or (sequences, tokens, ...) with a document mask."""

    cos: Any
    sin: Any


class Drops(NamedTuple):
    """Dropout: masks by a hash of the sequence's key, the place, the position and the column (engines/hashing.py)."""

    keys: Any
    """uint32 (sequences,)."""
    rate: float


class Kept(NamedTuple):
    """What a layer keeps for its backward pass; None is computed again."""

    x: Any
    qkv: Any = None
    attended: Any = None
    middle: Any = None
    gate_up: Any = None


class Context(NamedTuple):
    """What is the same for all layers of a micro-batch."""

    shape: Shape
    placement: Placement
    rotary: Rotary
    mask: Any
    """(sequences, 1, tokens, tokens), True where a token may attend; None is causal."""
    drops: Drops | None
    flash: bool
    """cuDNN's attention, on GPUs that have it."""


def norm(x: Any, gain: Any, eps: float) -> Any:
    """RMSNorm: x over its root mean square, times the gain."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps) * gain).astype(x.dtype)


def product(x: Any, weight: Any) -> Any:
    """x @ weight^T."""
    return jnp.einsum("...i,oi->...o", x, weight.astype(x.dtype))


def scatter(counter: Any) -> Any:
    """`hashing.scatter` for uint32, whose products wrap around."""
    bits = counter * jnp.uint32(0x9E3779B1)
    bits = (bits ^ bits >> 16) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ bits >> 15) * jnp.uint32(0x846CA68B)
    return bits ^ bits >> 16


def dropped(x: Any, drops: Drops | None, place: Any) -> Any:
    """Every place in the model has its own mask: 0 is the embedding, and each layer has two."""
    if drops is None:
        return x
    _, tokens, width = x.shape
    sequences = scatter(drops.keys + jnp.asarray(place, jnp.uint32))
    keys = scatter(sequences[:, None] + jnp.arange(tokens, dtype=jnp.uint32))
    hashes = scatter(keys[:, :, None] + jnp.arange(width, dtype=jnp.uint32))
    threshold = jnp.uint32(min(round(drops.rate * 2**32), 2**32 - 1))
    factors = jnp.where(hashes < threshold, 0.0, 1 / (1 - drops.rate))
    return (x.astype(jnp.float32) * factors).astype(x.dtype)


def rotate(heads: Any, rotary: Rotary) -> Any:
    """(sequences, tokens, heads, head width): dimension i is paired with i + head width / 2, as in Llama's weights."""
    first, second = jnp.split(heads, 2, -1)
    cos, sin = rotary.cos[..., None, :], rotary.sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def heads_of(qkv: Any, weights: Tree, shape: Shape, rotary: Rotary) -> tuple[Any, Any, Any]:
    """Queries, keys and values, (sequences, tokens, heads, head width), the first two normalized and rotated."""
    sequences, tokens, _ = qkv.shape
    every = qkv.reshape(sequences, tokens, -1, shape.head_width)
    q, k, v = jnp.split(every, (shape.heads, shape.heads + shape.kv_heads), 2)
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    if shape.qk_norm:
        q, k = norm(q, weights["norm_q"], shape.norm_eps), norm(k, weights["norm_k"], shape.norm_eps)
    return rotate(q, rotary).astype(qkv.dtype), rotate(k, rotary).astype(qkv.dtype), v


def attention(qkv: Any, weights: Tree, context: Context) -> Any:
    """(sequences, tokens, heads x head width)."""
    q, k, v = heads_of(qkv, weights, context.shape, context.rotary)
    sequences, tokens = qkv.shape[:2]
    at_once = max(1, MOST_SCORES // (context.shape.heads * tokens * tokens))
    if context.flash:
        found = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    elif sequences <= at_once or context.placement.divides:
        found = _attended(q, k, v, context.mask)
    else:
        parts = (q, k, v) if context.mask is None else (q, k, v, context.mask)
        found = lax.map(lambda own: _attended(*(each[None] for each in own))[0], parts)
    return found.reshape(sequences, tokens, -1)


def _attended(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=mask is None)


def gated(gate_up: Any) -> Any:
    """SwiGLU: silu of the first half of the columns times the second half."""
    first, second = jnp.split(gate_up.astype(jnp.float32), 2, -1)
    return (jax.nn.silu(first) * second).astype(gate_up.dtype)


# The steps of a layer, each a function of what is kept before it.


def _qkv(x: Any, weights: Tree, context: Context) -> Any:
    return product(norm(x, weights["norm_attention"], context.shape.norm_eps), weights["qkv"])


def _attention_out(attended: Any, weights: Tree, context: Context, number: Any) -> Any:
    return dropped(product(attended, weights["out"]), context.drops, 2 * number + 1)


def _gate_up(middle: Any, weights: Tree, context: Context) -> Any:
    return product(norm(middle, weights["norm_feed_forward"], context.shape.norm_eps), weights["gate_up"])


def _feed_forward_out(gate_up: Any, weights: Tree, context: Context, number: Any) -> Any:
    return dropped(product(gated(gate_up), weights["down"]), context.drops, 2 * number + 2)


def forward(x: Any, weights: Tree, context: Context, number: Any) -> tuple[Any, Kept]:
    """The layer with this number: its result, and everything that could be kept."""
    weights = {name: context.placement.gathered(weight) for name, weight in weights.items()}
    qkv = _qkv(x, weights, context)
    attended = attention(qkv, weights, context)
    middle = context.placement.by_sequence(x + _attention_out(attended, weights, context, number))
    gate_up = _gate_up(middle, weights, context)
    result = context.placement.by_sequence(middle + _feed_forward_out(gate_up, weights, context, number))
    return result, Kept(x, qkv, attended, middle, gate_up)


def backward(grad: Any, kept: Kept, weights: Tree, context: Context, number: Any) -> tuple[Any, Tree]:
    """The gradients of the layer's input and of its weights."""
    if kept.qkv is None:
        _, kept = forward(kept.x, weights, context, number)
    weights = {name: context.placement.gathered(weight) for name, weight in weights.items()}

    def back(step: Any, given: Any, names: tuple[str, ...], grad: Any, *extra: Any) -> tuple[Any, Tree]:
        used = {name: weights[name] for name in names}
        _, pull = jax.vjp(lambda given, used: step(given, used, context, *extra), given, used)
        found: tuple[Any, Tree] = pull(grad)
        return found

    d_gate_up, d_down = back(_feed_forward_out, kept.gate_up, ("down",), grad, number)
    d_middle, d_up = back(_gate_up, kept.middle, ("norm_feed_forward", "gate_up"), d_gate_up)
    grad = context.placement.by_sequence(grad + d_middle)
    d_attended, d_out = back(_attention_out, kept.attended, ("out",), grad, number)
    norms = ("norm_q", "norm_k") if context.shape.qk_norm else ()
    d_qkv, d_norms = back(attention, kept.qkv, norms, d_attended)
    d_x, d_first = back(_qkv, kept.x, ("norm_attention", "qkv"), d_qkv)
    return context.placement.by_sequence(grad + d_x), {**d_first, **d_norms, **d_out, **d_up, **d_down}
