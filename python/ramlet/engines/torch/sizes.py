"""Sizes shared by the code and the predictions of its memory. Imports no torch."""

from __future__ import annotations

from ramlet.model.shape import Shape

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

BLOCK = 256
"""Elements that share a scale in the 8-bit optimizer, as in the native core."""

ALIGNMENT = BLOCK
"""In the flat weights every matrix starts at a multiple of this many elements."""

SMALLEST_QUANTIZED = 4096
"""Smaller tensors keep 32-bit states in the 8-bit optimizer: there is little to save, and norms are sensitive."""


def adamw8bit_bytes(elements: int) -> int:
    """The two states of a tensor: a byte per element each, and two fp32 scales per block."""
    return elements * 8 if elements < SMALLEST_QUANTIZED else 2 * (elements + 4 * -(-elements // BLOCK))


def flat_elements(shape: Shape) -> tuple[int, int]:
    """Elements of the two flat tensors of weights.py: matrices and gains."""
    width = shape.width
    layer = [shape.qkv_width * width, width * width, 2 * shape.feed_forward * width, width * shape.feed_forward]
    embeddings = [shape.padded_vocab * width] * (1 if shape.tied else 2)
    gains = [width, *[shape.head_width] * (2 if shape.qk_norm else 0), width]
    return _aligned(embeddings + layer * shape.layers), _aligned([*gains * shape.layers, width])


def _aligned(sizes: list[int]) -> int:
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1]) + sizes[-1]
