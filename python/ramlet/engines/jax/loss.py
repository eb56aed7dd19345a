"""The loss of a micro-batch, with its gradient, and never with all of its logits.

    total, grad, head_grad = learn_head(hidden, targets, head, head_grad, scale, chunk=16, vocab=300)

The logits of a slice of the positions of all sequences become their own gradient, from which those of the hidden states
and of the head follow: with a vocabulary of 50,000, whole logits would be more than half of a step's memory.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ramlet.engines.jax.mesh import Placement

IGNORE = -100
"""The target of a token without a loss."""


def slice_length(tokens: int, sequences: int, chunk: int) -> int:
    """Positions at once, so that all sequences together have at most `chunk` tokens; at least one."""
    most = max(1, min(tokens, chunk // sequences))
    return -(-tokens // -(-tokens // most))


def slices(array: Any, length: int, fill: Any = 0) -> Any:
    """(sequences, tokens, ...) -> (slices, sequences, length, ...)."""
    sequences, tokens, *rest = array.shape
    count = -(-tokens // length)
    if count * length > tokens:
        padding = [(0, 0), (0, count * length - tokens), *[(0, 0)] * len(rest)]
        array = jnp.pad(array, padding, constant_values=fill)
    return jnp.moveaxis(array.reshape(sequences, count, length, *rest), 1, 0)


def joined(sliced: Any, tokens: int) -> Any:
    """The opposite of `slices`."""
    array = jnp.moveaxis(sliced, 0, 1)
    return array.reshape(array.shape[0], -1, *array.shape[3:])[:, :tokens]


def token_losses(logits: Any, targets: Any, vocab: int) -> tuple[Any, Any, Any]:
    """The loss of each token in fp32, its probabilities, and whether it counts; columns from `vocab` on are padding."""
    wide = jnp.where(jnp.arange(logits.shape[-1]) < vocab, logits.astype(jnp.float32), -jnp.inf)
    most = wide.max(-1, keepdims=True)
    exponents = jnp.exp(wide - most)
    total = exponents.sum(-1, keepdims=True)
    known = targets != IGNORE
    wanted = jnp.take_along_axis(wide, jnp.maximum(targets, 0)[..., None], -1)
    losses = jnp.where(known, (most + jnp.log(total) - wanted)[..., 0], 0.0)
    return losses, exponents / total, known


def learn_head(
    hidden: Any, targets: Any, head: Any, head_grad: Any, scale: Any, *, chunk: int, vocab: int, placement: Placement
) -> tuple[Any, Any, Any]:
    """The summed loss, `scale` times the gradient of the hidden states, and `head_grad` with that of the head added."""
    sequences, tokens, _ = hidden.shape
    length = slice_length(tokens, sequences, chunk)
    weight = placement.gathered(head.astype(hidden.dtype))

    def one(carry: Any, given: Any) -> Any:
        total, grad = carry
        part, wanted = given
        logits = jnp.einsum("bti,vi->btv", part, weight)
        losses, shares, known = token_losses(logits, wanted, vocab)
        hits = jnp.arange(logits.shape[-1]) == wanted[..., None]
        d_logits = ((shares - hits) * (known * scale)[..., None]).astype(hidden.dtype)
        d_part = jnp.einsum("btv,vi->bti", d_logits, weight)
        d_head = jnp.einsum("btv,bti->vi", d_logits, part).astype(grad.dtype)
        return (total + losses.sum(), placement.hold("head", grad + d_head)), d_part

    given = (slices(hidden, length), slices(targets, length, IGNORE))
    (total, head_grad), parts = lax.scan(one, (jnp.float32(0), head_grad), given)
    return total, joined(parts, tokens), head_grad


def losses_of(hidden: Any, targets: Any, head: Any, *, chunk: int, vocab: int, placement: Placement) -> Any:
    """The loss of each token, (sequences, tokens), without gradients."""
    sequences, tokens, _ = hidden.shape
    length = slice_length(tokens, sequences, chunk)
    weight = placement.gathered(head.astype(hidden.dtype))

    def one(given: Any) -> Any:
        part, wanted = given
        return token_losses(jnp.einsum("bti,vi->btv", part, weight), wanted, vocab)[0]

    return joined(lax.map(one, (slices(hidden, length), slices(targets, length, IGNORE))), tokens)
