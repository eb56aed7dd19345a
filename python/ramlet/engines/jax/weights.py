"""The weights as a tree: a dictionary of arrays, in which every matrix of the layers is one stack.

    tree = layout(shape)                    # {"embedding": (8192, 256), "layers.qkv": (6, 768, 256), "norm": (256,)}
    params = zeros(shape, "fp32", placement)

The names are those of `ramlet.model.names`, without the number of the layer: `lax.scan` runs over the first axis of a
stack. Files know nothing of this (stored.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

from ramlet.engines.jax.mesh import Placement
from ramlet.engines.torch.sizes import ALIGNMENT
from ramlet.model.shape import Shape

LAYERS = "layers."
DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
"""By the names that settings use."""

Tree = dict[str, Any]


def layout(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every array, in the order of files. Gains have one dimension besides that of the layers."""
    sizes: dict[str, tuple[int, ...]] = {"embedding": (shape.padded_vocab, shape.width)}
    if not shape.tied:
        sizes["head"] = (shape.padded_vocab, shape.width)
    for name, size in _layer(shape).items():
        sizes[LAYERS + name] = (shape.layers, *size)
    return {**sizes, "norm": (shape.width,)}


def _layer(shape: Shape) -> dict[str, tuple[int, ...]]:
    norms = {"norm_q": (shape.head_width,), "norm_k": (shape.head_width,)} if shape.qk_norm else {}
    return {
        "norm_attention": (shape.width,),
        "qkv": (shape.qkv_width, shape.width),
        "out": (shape.width, shape.queries_width),
        **norms,
        "norm_feed_forward": (shape.width,),
        "gate_up": (2 * shape.feed_forward, shape.width),
        "down": (shape.width, shape.feed_forward),
    }


def is_matrix(name: str) -> bool:
    return "norm" not in name


def is_hidden(name: str) -> bool:
    """Whether it is a matrix inside the layers."""
    return is_matrix(name) and name.startswith(LAYERS)


def stacks(tree: Tree) -> Tree:
    """The arrays of the layers, by their names in a layer."""
    return {name.removeprefix(LAYERS): array for name, array in tree.items() if name.startswith(LAYERS)}


class Part(NamedTuple):
    """Where one weight is in the tree, and in the flat states of a checkpoint."""

    name: str
    layer: int | None
    """None outside of the layers."""
    size: tuple[int, ...]
    start: int
    """Its first element among the matrices, or among the gains."""


def parts(shape: Shape) -> Iterator[Part]:
    """All weights in the order of the flat states, where each starts at a multiple of `ALIGNMENT`."""
    ends = {True: 0, False: 0}

    def part(name: str, layer: int | None, size: tuple[int, ...]) -> Part:
        kind = is_matrix(name)
        start = -(-ends[kind] // ALIGNMENT) * ALIGNMENT
        ends[kind] = start + math.prod(size)
        return Part(name, layer, size, start)

    sizes = layout(shape)
    yield from (part(name, None, sizes[name]) for name in ("embedding", "head") if name in sizes)
    for layer in range(shape.layers):
        yield from (part(LAYERS + name, layer, size) for name, size in _layer(shape).items())
    yield part("norm", None, sizes["norm"])


def starts(shape: Shape) -> dict[str, tuple[int, int]]:
    """Of each array: its first element in the flat states, and how far apart its layers are there."""
    found: dict[str, list[int]] = {}
    for part in parts(shape):
        found.setdefault(part.name, []).append(part.start)
    return {name: (all_[0], all_[1] - all_[0] if len(all_) > 1 else 0) for name, all_ in found.items()}


def dtype_of(name: str, weights: str) -> Any:
    """Of a stored weight: gains are always fp32."""
    return DTYPES[weights] if is_matrix(name) else jnp.float32


def zeros(shape: Shape, weights: str, placement: Placement) -> Tree:
    return {name: placement.zeros(name, size, dtype_of(name, weights)) for name, size in layout(shape).items()}
