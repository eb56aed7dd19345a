"""The tables of rotary positions: only as long as what the model is used for.

    tables = RotaryTables(shape, device)
    cos, sin = tables.of(1024)              # (at least 1024, head width / 2) each, fp32

A published context of 131,072 tokens would take 67 MB, and three times that while it is computed, also for short texts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ramlet.model.rope import RopeScaling
from ramlet.model.shape import Shape


class RotaryTables:
    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._made: list[tuple[Tensor, Tensor]] = []
        """Shorter ones stay: a captured CUDA graph has their addresses."""

    def of(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the positions below `length`; at most those of the context."""
        length = min(length, self._shape.context)
        before = len(self._made[-1][0]) if self._made else 0
        if length > before:
            # Twice as long as before: all together are less than twice the longest.
            angles = _angles(self._shape, min(self._shape.context, max(length, 2 * before)))
            self._made.append((angles.cos().float().to(self._device), angles.sin().float().to(self._device)))
        return self._made[-1]


def _angles(shape: Shape, length: int) -> Tensor:
    half = shape.head_width // 2
    steps = shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    if shape.rope_scaling is not None:
        steps = _scaled(steps, shape.rope_scaling)
    return torch.arange(length, dtype=torch.float64)[:, None] * steps


def _scaled(steps: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3's: turns that take longer than the original context are slower, fast ones are not."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * steps / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return steps * (share + (1 - share) / scaling.factor)
