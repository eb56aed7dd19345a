"""Sizes that the code and the predictions of its memory both follow from. Without torch, for predicting needs none."""

from __future__ import annotations

__all__ = ["ALIGNMENT", "BLOCK", "BYTES", "SMALLEST_QUANTIZED", "adamw8bit_bytes"]

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

BLOCK = 256
"""Elements that share a scale in the 8-bit optimizer, as in the native core."""

ALIGNMENT = BLOCK
"""Elements at whose multiples a matrix begins in the flat weights."""

SMALLEST_QUANTIZED = 4096
"""A tensor of fewer elements keeps 32-bit states in the 8-bit optimizer: there is little to save, and norms are
delicate."""


def adamw8bit_bytes(elements: int) -> int:
    """The two states of a parameter: a byte each, and two fp32 scales a block."""
    return elements * 8 if elements < SMALLEST_QUANTIZED else 2 * (elements + 4 * -(-elements // BLOCK))
