"""Sizes shared by the code and the predictions of its memory. Imports no torch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ramlet.model.shape import Shape

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def tensors_of(compute: str) -> str:
    """The precision of what a step computes: with fp8, only inputs of some products are smaller (fp8.py)."""
    return "bf16" if compute == "fp8" else compute


BLOCK = 256
"""Elements that share a scale in the 8-bit optimizer, as in the native core."""

ALIGNMENT = BLOCK
"""In the flat weights every matrix starts at a multiple of this many elements."""

SMALLEST_QUANTIZED = 4096
"""Smaller tensors keep 32-bit states in the 8-bit optimizer: there is little to save, and norms are sensitive."""


def adamw8bit_bytes(elements: int, whole: int | None = None) -> int:
    """The two states of a tensor: a byte per element each, and two fp32 scales per block.

    Of a part of a tensor, `whole` is the size of that, which decides whether its states are quantized.
    """
    small = (elements if whole is None else whole) < SMALLEST_QUANTIZED
    return elements * 8 if small else 2 * (elements + 4 * -(-elements // BLOCK))


def has_flash(device: str, document_mask: bool, *, fp32: bool) -> bool:
    """Whether torch's flash attention applies; `fp32` is the precision of the products."""
    return not document_mask and (device == "cpu" or not fp32)


def repeats_keys(shape: Shape, device: str, document_mask: bool, *, fp32: bool) -> bool:
    """Whether grouped keys and values are repeated for every head, because no kernel of torch takes them as they are.

    On CUDA, other than flash attention, only a function that has all (tokens, tokens) scores in memory takes them.
    """
    return device == "cuda" and shape.heads != shape.kv_heads and not has_flash(device, document_mask, fp32=fp32)


def recomputes_qk_norm(shape: Shape, device: str, document_mask: bool, *, fp32: bool) -> bool:
    """Whether a layer with QK-norm calls flash attention itself and keeps only what goes into it (attention.py).

    CUDA's takes heads up to 256 wide, in multiples of 8; torch pads others where it calls it.
    """
    fits = device == "cpu" or (shape.head_width % 8 == 0 and shape.head_width <= 256)
    return shape.qk_norm and fits and has_flash(device, document_mask, fp32=fp32)


def rotary_bytes(shape: Shape, length: int) -> int:
    """The tables for sequences of this length (rotary.py)."""
    return min(length, shape.context) * shape.head_width * BYTES["fp32"]


class Stack(NamedTuple):
    """The same matrix of every layer, in the flat matrices from `hidden_start` on."""

    start: int
    rows: int
    columns: int
    stride: int
    """From one layer to the next."""


@lru_cache(maxsize=32)  # a plan asks thousands of times
def flat_elements(shape: Shape) -> tuple[int, int]:
    """Elements of the two flat tensors of weights.py: matrices and gains."""
    gains = [shape.width, *[shape.head_width] * (2 if shape.qk_norm else 0), shape.width]
    matrices = _embeddings(shape) + _layer_matrices(shape) * shape.layers
    return _aligned(matrices), _aligned([*gains * shape.layers, shape.width])


@lru_cache(maxsize=32)
def hidden_start(shape: Shape) -> int:
    """Where the embeddings end and the layers begin in the flat matrices."""
    return _aligned([*_embeddings(shape), 0])


def layer_starts(shape: Shape) -> list[int]:
    """Where each fused matrix of each layer starts in the flat matrices, in order."""
    first, sizes = hidden_start(shape), _layer_matrices(shape)
    stride = _aligned([*sizes, 0])
    within = [_aligned([*sizes[:before], 0]) for before in range(len(sizes))]
    return [first + layer * stride + start for layer in range(shape.layers) for start in within]


def layer_range(shape: Shape, layer: int) -> tuple[int, int]:
    """From the first element of a layer's matrices to the end of its last."""
    sizes = _layer_matrices(shape)
    start = hidden_start(shape) + layer * _aligned([*sizes, 0])
    return start, start + _aligned(sizes)


def embedding_elements(shape: Shape) -> int:
    """Of the embedding, or of the head."""
    return shape.padded_vocab * shape.width


LAYER_BUFFERS = 2
"""In an exchange: one is used while the other is sent or received."""


def buffer_elements(shape: Shape) -> int:
    """Of the buffers for the units of an exchange (exchange.py): some layers, and the embedding or the head."""
    start, end = layer_range(shape, 0)
    return min(LAYER_BUFFERS, shape.layers) * (end - start) + embedding_elements(shape)


def stacks(shape: Shape) -> list[Stack]:
    """All matrices inside layers; queries, keys, values, gate and up are matrices of their own."""
    stride = _aligned([*_layer_matrices(shape), 0])
    found = []
    for before, fused in enumerate(shape.layer_matrices):
        start = _aligned([*_layer_matrices(shape)[:before], 0])
        for rows, columns in fused:
            found.append(Stack(start, rows, columns, stride))
            start += rows * columns
    return found


def _embeddings(shape: Shape) -> list[int]:
    return [embedding_elements(shape)] * (1 if shape.tied else 2)


def _layer_matrices(shape: Shape) -> list[int]:
    return [sum(rows * columns for rows, columns in fused) for fused in shape.layer_matrices]


def _aligned(sizes: list[int]) -> int:
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1]) + sizes[-1]
