"""The 8-bit codes of optimizer states (docs/design/adamw8bit.md), and loops over the blocks of a tree's arrays.

A block is 256 elements of one weight in its order; the last one of a weight may be shorter. The codes of a weight have
its shape, the scales are (blocks,) or (layers, blocks). What is decoded is never larger than a layer of one weight, or
a tile of an embedding: the loop overwrites codes and gradients in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ramlet.engines.torch.sizes import BLOCK

TILE = 1 << 20
"""Elements of an embedding that are decoded at once, about."""
LEAST_NORMAL = np.float32(2.0**-126)
_SEVENTH = int(np.float32(1 / 7).view(np.int32))
_SIX_SEVENTHS = int(np.float32(6 / 7).view(np.int32))


def scales_size(size: Sequence[int], *, stacked: bool) -> tuple[int, ...]:
    """Of the scales of a weight."""
    own = size[1:] if stacked else size
    blocks = -(-math.prod(own) // BLOCK)
    return (size[0], blocks) if stacked else (blocks,)


def in_blocks(array: Any) -> Any:
    """(blocks, 256), the last one filled up with zeros."""
    flat = array.reshape(-1)
    missing = -len(flat) % BLOCK
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, BLOCK)


def from_blocks(blocks: Any, like: Any) -> Any:
    return blocks.reshape(-1)[: math.prod(like.shape)].reshape(like.shape)


def decode(codes: Any, bits: int) -> Any:
    """The values of codes, without their scales: a sign and 7 bits, where 0 is 0; or 8 bits without a zero."""
    sign = codes >> 7 if bits == 7 else jnp.zeros_like(codes)
    plain = (codes & 0x7F) if bits == 7 else codes
    pattern = lax.bitcast_convert_type(plain.astype(jnp.float32) + 1, jnp.int32)
    level = (pattern >> 23) - 127
    fraction = lax.bitcast_convert_type(pattern & 0x7FFFFF | 0x3F800000, jnp.float32)
    power = lax.bitcast_convert_type((127 + 3 * (level - bits)) << 23, jnp.float32)
    values = (7 * fraction - 6) * power
    if bits == 8:
        return values
    return jnp.where(plain == 0, 0.0, jnp.where(sign == 1, -values, values))


def encode(magnitudes: Any, bits: int) -> tuple[Any, Any]:
    """The codes of (blocks, 256) magnitudes, and their scales: the largest of each block."""
    scales = block_scales(magnitudes)
    inverse = jnp.where(scales > 0, 1 / scales, 0)[:, None]
    shares = jnp.nan_to_num(magnitudes * inverse, nan=0.0, posinf=0.0, neginf=0.0)
    shares = jnp.maximum(shares, np.float32(8.0**-bits))
    pattern = lax.bitcast_convert_type(shares, jnp.int32)
    level = ((pattern >> 23) - (127 - 3 * bits)) * 11 & ~31
    slope = lax.bitcast_convert_type(_SEVENTH + (3 * bits << 23) - (level << 19), jnp.float32)
    offset = lax.bitcast_convert_type(_SIX_SEVENTHS + (level << 18), jnp.float32)
    # The sum is in [2^23, 2^24), where all floats are integers.
    summed = shares * slope + offset + np.float32(2**23 - 1)
    return (lax.bitcast_convert_type(summed, jnp.int32) & 0xFF).astype(jnp.uint8), scales


def block_scales(magnitudes: Any) -> Any:
    most = magnitudes.max(1)
    # The maximum propagates NaN; an infinity becomes one.
    return jnp.where(most < LEAST_NORMAL, 0, jnp.where(most < jnp.inf, most, jnp.nan))


def over_layers(step: Callable[..., Sequence[Any]], arrays: Sequence[Any], *, stacked: bool, tiled: bool) -> list[Any]:
    """`step` on the arrays of one layer at a time, or of one tile of an embedding; its results take their places.

    The first array is the gradient; scales are the arrays with one dimension less.
    """
    if not stacked:
        tiles = _tiles(arrays[0].shape) if tiled else 1
        if tiles == 1:
            return list(step(*arrays))
        split = [array.reshape(tiles, array.shape[0] // tiles, *array.shape[1:]) for array in arrays]
        joined = over_layers(step, split, stacked=True, tiled=False)
        return [new.reshape(array.shape) for new, array in zip(joined, arrays)]

    def body(number: Any, carry: list[Any]) -> list[Any]:
        own = [lax.dynamic_index_in_dim(array, number, keepdims=False) for array in carry]
        return [
            lax.dynamic_update_index_in_dim(array, new.astype(array.dtype), number, 0)
            for array, new in zip(carry, step(*own))
        ]

    done: list[Any] = lax.fori_loop(0, arrays[0].shape[0], body, list(arrays))
    return done


def _tiles(size: Sequence[int]) -> int:
    """Into how many equal parts of whole blocks the rows of a matrix are divided."""
    if len(size) < 2:
        return 1
    wanted = -(-math.prod(size) // TILE)
    rows, width = size
    fitting = (count for count in range(wanted, rows + 1) if rows % count == 0 and rows // count * width % BLOCK == 0)
    return next(fitting, 1)
