"""Generates token ids after a prompt; the loop is that of all engines (engines/continuing.py).

Shapes never change, so two programs are compiled: one reads a piece of a prompt, one a token of every sample. A piece
is filled up with tokens that later ones overwrite in the cache, and that nothing attends to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ramlet.engines import Sampling
from ramlet.engines.continuing import READING_PIECE, ContinuingLoop, cached_tokens
from ramlet.engines.jax import layers
from ramlet.engines.jax.gpt import GPT, Forward, Net
from ramlet.engines.jax.layers import Rotary
from ramlet.engines.jax.mesh import blank
from ramlet.engines.jax.weights import Tree, stacks
from ramlet.engines.native.sampling import Chooser, sampling_bytes
from ramlet.model.shape import Shape

CAPACITIES = 128
"""Tokens: a cache has a multiple of these, or the whole context."""

Cache = tuple[Any, Any]
"""Keys and values, (layers, samples, capacity, key/value heads, head width) each."""


def read_tokens(
    net: Net, params: Tree, cache: Cache, ids: Any, length: Any, last: Any, tables: Rotary
) -> tuple[Any, Cache]:
    """The logits after the ids at `last`, and the cache with all ids added from `length` on; (samples, tokens) ids."""
    shape = net.shape
    tokens, capacity = ids.shape[1], cache[0].shape[2]
    positions = length + jnp.arange(tokens)
    known = jnp.minimum(positions, len(tables.cos) - 1)
    rotary = Rotary(tables.cos[known], tables.sin[known])
    mask = (jnp.arange(capacity)[None, :] <= positions[:, None])[None, None]

    def layer(x: Any, given: Any) -> Any:
        weights, keys, values = given
        qkv = layers.product(layers.norm(x, weights["norm_attention"], shape.norm_eps), weights["qkv"])
        q, k, v = layers.heads_of(qkv, weights, shape, rotary)
        keys = lax.dynamic_update_slice_in_dim(keys, k.astype(keys.dtype), length, 1)
        values = lax.dynamic_update_slice_in_dim(values, v.astype(values.dtype), length, 1)
        attended = jax.nn.dot_product_attention(q, keys, values, mask=mask)
        x = x + layers.product(attended.reshape(*x.shape[:2], -1), weights["out"])
        gate_up = layers.product(layers.norm(x, weights["norm_feed_forward"], shape.norm_eps), weights["gate_up"])
        return x + layers.product(layers.gated(gate_up), weights["down"]), (keys, values)

    x = net.embedded(params, ids)
    x, cache = lax.scan(layer, x, (stacks(params), *cache))
    hidden = layers.norm(lax.dynamic_slice_in_dim(x, last, 1, 1), params["norm"], shape.norm_eps)
    return layers.product(hidden, net.head(params))[:, 0, : shape.vocab_size].astype(jnp.float32), cache


class Continuation(ContinuingLoop[Any]):
    def __init__(
        self,
        model: GPT,
        prompt: Sequence[int],
        settings: Sampling,
        *,
        end_ids: Collection[int] = (),
        known: bytearray | None = None,
    ) -> None:
        """`prompt` has between one id and a full context."""
        shape, self._net, self._params, self._forward = model.shape, model.net, model.params, model.forward
        super().__init__(shape.context, prompt, settings, end_ids=end_ids)
        self._choose = Chooser(settings, shape.vocab_size, prompt, known)
        self._capacity = places(shape.context, cached_tokens(shape.context, len(prompt), settings))
        self._tables = model.tables(self._capacity)
        self._rows = 1
        self._cache = self._blank(1)
        self._length = 0
        self._logits: Any = None

    def _blank(self, rows: int) -> Cache:
        size = cache_size(self._net.shape, rows, self._capacity)
        where = self._net.placement.everywhere
        return blank(size, self._net.dtype, where), blank(size, self._net.dtype, where)

    def feed(self, ids: Sequence[Sequence[int]]) -> None:
        rows, count = len(ids), len(ids[0])
        tokens = 1 if count == 1 else piece_length(self._capacity, rows)
        if rows != self._rows:
            self._rows, self._cache = rows, self._blank(rows)
        for start in range(0, count, tokens):
            some = np.array([row[start : start + tokens] for row in ids], np.int32)
            given = np.zeros((rows, tokens), np.int32)
            given[:, : some.shape[1]] = some
            put = self._net.placement.copied
            at, last = put(np.int32(self._length)), put(np.int32(some.shape[1] - 1))
            self._logits, self._cache = self._forward.read(
                self._params, self._cache, put(given), at, last, self._tables
            )
            self._length += some.shape[1]

    def logits(self) -> Any:
        return np.array(self._logits)

    def exclude(self, logits: Any, ids: Collection[int]) -> None:
        logits[:, [number for number in ids if number < logits.shape[1]]] = float("-inf")

    def spread(self, logits: Any) -> Any:
        samples = self._settings.num_samples
        if samples > 1:
            self._rows = samples
            self._cache = tuple(jnp.repeat(part, samples, axis=1) for part in self._cache)
        return logits.repeat(samples, axis=0)

    def is_full(self) -> bool:
        return self._length == self._capacity

    def clear(self) -> None:
        self._length = 0

    def choose(self, logits: Any) -> list[int]:
        return self._choose(logits)


def prepare(forward: Forward, params: Tree, tokens: int) -> None:
    """Compiles what samples of so many tokens, with their prompts, need."""
    net = forward.net
    capacity = places(net.shape.context, tokens)

    def described(size: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(size, dtype, sharding=net.placement.everywhere)

    size = cache_size(net.shape, 1, capacity)
    cache = (described(size, net.dtype), described(size, net.dtype))
    table = described((capacity, net.shape.head_width // 2), jnp.float32)
    number = described((), jnp.int32)
    for count in {1, piece_length(capacity, 1)}:
        forward.read(params, cache, described((1, count), jnp.int32), number, number, Rotary(table, table))


def places(context: int, tokens: int) -> int:
    """The capacity of a cache for so many tokens: few different ones, so that few programs are compiled."""
    return min(context, -(-tokens // CAPACITIES) * CAPACITIES)


def cache_size(shape: Shape, rows: int, capacity: int) -> tuple[int, ...]:
    # A piece that is filled up may be longer than what is left.
    longest = capacity + piece_length(capacity, 1)
    return (shape.layers, rows, longest, shape.kv_heads, shape.head_width)


def piece_length(capacity: int, samples: int) -> int:
    """Tokens of a prompt that are read at once."""
    return max(1, min(READING_PIECE // samples, capacity))


def continuing_bytes(shape: Shape, item: int, prompt: int, settings: Sampling) -> dict[str, int]:
    """Bytes by part of a `Continuation`, on top of the weights."""
    rows = settings.num_samples
    capacity = places(shape.context, cached_tokens(shape.context, prompt, settings))
    tokens = piece_length(capacity, 1)
    longest = capacity + tokens
    cache = 2 * shape.layers * rows * longest * shape.keys_width * item
    wide = max(shape.qkv_width, 2 * shape.feed_forward) + 2 * shape.width
    scores = shape.heads * tokens * longest * 4 * 3
    logits = rows * shape.padded_vocab * 4 * 3 + sampling_bytes(settings, shape.vocab_size)
    layer = max(shape.layer_parameters, shape.padded_vocab * shape.width) * item
    # The cache is copied when the prompt's is repeated for every sample; a layer's weights are converted.
    return {"the KV cache": 2 * cache, "a forward pass": 3 * tokens * wide * 4 + scores + logits + layer}
