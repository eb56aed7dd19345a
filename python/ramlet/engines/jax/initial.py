"""The first weights of a model, by a seed.

Generated on the host in pieces and written into the arrays: the same weights on any device and any number of them,
without a second copy, and without a program to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ramlet.engines.constants import initial_deviation, initial_qk_gain
from ramlet.engines.jax.mesh import Placement
from ramlet.engines.jax.stored import Rows, write
from ramlet.engines.jax.weights import Part, Tree, is_matrix, parts
from ramlet.model.shape import Shape

PIECE = 1 << 18
"""Elements."""


def initialize(shape: Shape, params: Tree, seed: int, placement: Placement) -> None:
    """Normal with std 0.02, scaled down with depth for what writes into the residual stream; gains 1, except those of
    QK-norm."""
    for number, part in enumerate(parts(shape)):
        rows = Rows(params, part.name, part.layer, 0, part.size[0], placement)
        first = 0
        for numbers in _pieces(shape, part, np.random.default_rng([seed, number])):
            bits = numbers.astype(params[part.name].dtype).view(f"uint{8 * params[part.name].dtype.itemsize}")
            write(rows, first, bits.reshape(len(numbers), -1))
            first += len(numbers)


def _pieces(shape: Shape, part: Part, generator: Any) -> Iterator[Any]:
    if not is_matrix(part.name):
        of_heads = part.name.endswith(("norm_q", "norm_k"))
        yield np.full(part.size, initial_qk_gain(shape.head_width) if of_heads else 1.0, np.float32)
        return
    count, width = part.size
    # Padding rows of the vocabulary stay 0.
    count = count if part.layer is not None else shape.vocab_size
    rows = max(1, PIECE // width)
    deviation = np.float32(initial_deviation(part.name, shape.layers))
    for start in range(0, count, rows):
        yield generator.standard_normal((min(rows, count - start), width), np.float32) * deviation
