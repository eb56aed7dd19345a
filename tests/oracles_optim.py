"""Reference implementation of AdamW with 8-bit states in NumPy: block by block, with a table lookup.

All arithmetic is fp32, one operation at a time, as defined in docs/design/adamw8bit.md. The nearest code is searched
among all 256 in fp64; if a magnitude is within 1e-6 of the middle between two codes, both count as correct.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK = 256
HALFWAY = 1e-6


def magnitudes(bits: int) -> npt.NDArray[np.float64]:
    """The quantization map: linear interpolation between the points (2^j, 8^(j - bits)), evaluated at code + 1."""
    powers = np.arange(bits + 1)
    return np.interp(np.arange(1, 2**bits + 1), 2.0**powers, 8.0 ** (powers - bits))


def signed_values() -> npt.NDArray[np.float64]:
    values = magnitudes(7)
    values[0] = 0
    return np.concatenate([values, -values])


SIGNED, UNSIGNED = signed_values(), magnitudes(8)


@dataclass
class State:
    first: Bytes
    first_scales: Floats
    root: Bytes
    root_scales: Floats

    @classmethod
    def zeros(cls, count: int) -> State:
        blocks = -(-count // BLOCK)
        return cls(
            np.zeros(count, np.uint8),
            np.zeros(blocks, np.float32),
            np.zeros(count, np.uint8),
            np.zeros(blocks, np.float32),
        )


@dataclass
class Stepped:
    """The result of a step: exact weights and scales, and the two codes (mostly equal) that are correct."""

    weights: Floats
    first_scales: Floats
    root_scales: Floats
    first_codes: tuple[Bytes, Bytes]
    root_codes: tuple[Bytes, Bytes]


def step(weights: Floats, gradients: Floats, state: State, factors: tuple[float, ...]) -> Stepped:
    first_decay, first_gain, root_decay, root_gain, rate, eps, keep = (np.float32(factor) for factor in factors)
    outcome = Stepped(
        np.empty_like(weights),
        np.empty_like(state.first_scales),
        np.empty_like(state.root_scales),
        (np.empty_like(state.first), np.empty_like(state.first)),
        (np.empty_like(state.root), np.empty_like(state.root)),
    )
    with np.errstate(all="ignore"):
        for number in range(len(state.first_scales)):
            block = slice(number * BLOCK, (number + 1) * BLOCK)
            gradient = gradients[block]
            first = SIGNED.astype(np.float32)[state.first[block]] * (first_decay * state.first_scales[number])
            first = first + first_gain * gradient
            root = UNSIGNED.astype(np.float32)[state.root[block]] * (root_decay * state.root_scales[number])
            gained = root_gain * gradient
            root = np.sqrt(root * root + gained * gained)
            outcome.weights[block] = keep * weights[block] - rate * first / (root + eps)
            outcome.first_scales[number] = scale = block_scale(first)
            low, high = nearest(np.abs(first), scale, magnitudes(7))
            sign = np.where(scale > 0, np.signbit(first), False).astype(np.uint8) << 7
            outcome.first_codes[0][block], outcome.first_codes[1][block] = low | sign, high | sign
            outcome.root_scales[number] = scale = block_scale(root)
            outcome.root_codes[0][block], outcome.root_codes[1][block] = nearest(root, scale, UNSIGNED)
    return outcome


def block_scale(moments: Floats) -> np.float32:
    if not np.isfinite(moments).all():
        return np.float32(np.nan)
    most = np.abs(moments).max()
    return most if most >= 2.0**-126 else np.float32(0)


def nearest(moments: Floats, scale: np.float32, values: npt.NDArray[np.float64]) -> tuple[Bytes, Bytes]:
    """The codes nearest to each moment divided by the scale, rounding ties down and up."""
    if not scale > 0:
        return np.zeros(len(moments), np.uint8), np.zeros(len(moments), np.uint8)
    shares = (moments * (np.float32(1) / scale)).astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    low = np.searchsorted(middles * (1 + HALFWAY), shares)
    high = np.searchsorted(middles * (1 - HALFWAY), shares)
    return low.astype(np.uint8), high.astype(np.uint8)
