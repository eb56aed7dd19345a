"""The steps in plain torch, for devices that have neither the native core nor Triton.

It does what the native core does, operation by operation, and is bit-identical on devices that round square roots
correctly. (Torch on a CPU does not: one code in ten thousand would be off by one.) Working in tiles limits its scratch
memory to about 45 MB for a parameter of any size.
"""

from __future__ import annotations

import functools

import torch

from ramlet.engines.hashing import scatter
from ramlet.engines.torch.optim.factors import BLOCK, Factors
from ramlet.engines.torch.optim.state import Moments

TILE = 1 << 19
"""Elements updated at a time."""

_LEAST_NORMAL = 2.0**-126
_UNIT = torch.tensor(1 / 127).item()
_SEVENTH = torch.tensor(1 / 7).view(torch.int32).item()
_SIX_SEVENTHS = torch.tensor(6 / 7).view(torch.int32).item()


def step(
    weights: torch.Tensor, gradients: torch.Tensor, moments: Moments, factors: Factors, key: int, first_index: int
) -> None:
    """Updates flat tensors, which start at `first_index` of the parameter."""
    for start in range(0, weights.numel(), TILE):
        end = min(start + TILE, weights.numel())
        _step_tile(
            weights[start:end], gradients[start:end], moments.part(start, end), factors, key, first_index + start
        )


def _step_tile(
    weights: torch.Tensor, gradients: torch.Tensor, moments: Moments, factors: Factors, key: int, index: int
) -> None:
    gradients = gradients.float()
    signed, unsigned = values(7, weights.device), values(8, weights.device)
    first = _decode(moments.first, signed, moments.first_scales * factors.first_decay)
    first.add_(gradients * factors.first_gain)
    root = _decode(moments.root, unsigned, moments.root_scales * factors.root_decay)
    root.mul_(root)
    gained = gradients * factors.root_gain
    root.add_(gained.mul_(gained)).sqrt_()
    update = (first * factors.rate).div_(root + factors.eps)
    stepped = weights.float() * factors.keep - update
    weights.copy_(stepped if weights.dtype == torch.float32 else round_stochastically(stepped, key, index))
    sign = first.signbit().to(torch.uint8) << 7
    codes = _encode(first.abs_(), 7, moments.first_scales)
    # If the scale is NaN or 0, the code is 0 without a sign.
    sign.mul_(_per_element(moments.first_scales > 0, sign.numel()))
    moments.first.copy_(codes | sign)
    moments.root.copy_(_encode(root, 8, moments.root_scales))


def momentum(gradients: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, decay: float, gain: float) -> None:
    """Moves Muon's momentum, flat codes and scales, towards the gradients, and the gradients towards the momentum."""
    for start in range(0, gradients.numel(), TILE):
        some, blocks = slice(start, start + TILE), slice(start // BLOCK, (start + TILE) // BLOCK)
        gained = gradients[some].float() * gain
        count = gained.numel()
        moments = codes[some].float().mul_(_per_element(scales[blocks] * decay, count)).add_(gained)
        gradients[some] = gained.add_(moments * decay)
        units = _scales(moments.abs()) * _UNIT
        scales[blocks] = units.masked_fill_(units < _LEAST_NORMAL, 0)
        inverse = torch.where(units > 0, 1 / units, 0)
        # If the scale is NaN or 0, all codes are 0.
        codes[some] = moments.mul_(_per_element(inverse, count)).nan_to_num_(0, 0, 0).round_().to(torch.int8)


def subtract(weights: torch.Tensor, changes: torch.Tensor, keep: float, key: int) -> None:
    """`keep * weights - changes`, rounded to bf16 by the key and the place in memory; (count, rows, columns) each."""
    for matrix, change in zip(weights, changes):
        flat, change = matrix.view(-1), change.view(-1)
        for start in range(0, flat.numel(), TILE):
            some = slice(start, start + TILE)
            stepped = flat[some].float() * keep - change[some]
            flat[some] = round_stochastically(stepped, key, matrix.storage_offset() + start)


@functools.cache
def values(bits: int, device: torch.device) -> torch.Tensor:
    """The values of the 256 codes: a sign and 7 bits, where 0 is 0; or 8 bits, where 0 is the lowest value."""
    n = torch.arange(1, 2**bits + 1, dtype=torch.float64)
    level = n.log2().floor()
    magnitudes = (8 ** (level - bits) * (7 * (n / 2**level) - 6)).float()
    if bits == 7:
        magnitudes[0] = 0
        magnitudes = torch.cat([magnitudes, -magnitudes])
    return magnitudes.to(device)


def _decode(codes: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, codes.int()).mul_(_per_element(scales, codes.numel()))


def _encode(magnitudes: torch.Tensor, bits: int, scales: torch.Tensor) -> torch.Tensor:
    """The codes of magnitudes; the largest of each block becomes its scale."""
    scales.copy_(_scales(magnitudes))
    usable = scales > 0
    inverse = torch.where(usable, 1 / scales, 0)
    shares = magnitudes * _per_element(inverse, magnitudes.numel())
    shares = shares.nan_to_num_(0, 0, 0).clamp_min_(8.0**-bits)
    level = ((shares.view(torch.int32) >> 23) - (127 - 3 * bits)) * 11 & ~31
    slope = (_SEVENTH + (3 * bits << 23) - (level << 19)).view(torch.float32)
    offset = (_SIX_SEVENTHS + (level << 18)).view(torch.float32)
    # The sum is in [2^23, 2^24), where all floats are integers.
    rounded = shares.mul_(slope).add_(offset).add_(2**23 - 1)
    return (rounded.view(torch.int32) & 0xFF).to(torch.uint8)


def _scales(magnitudes: torch.Tensor) -> torch.Tensor:
    padding = -magnitudes.numel() % BLOCK
    most = torch.nn.functional.pad(magnitudes, (0, padding)).view(-1, BLOCK).amax(1)
    # amax propagates NaN; an infinity becomes one.
    return torch.where(most < _LEAST_NORMAL, 0, torch.where(most < torch.inf, most, torch.nan))


def _per_element(scales: torch.Tensor, count: int) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK)[:count]


def round_stochastically(numbers: torch.Tensor, key: int, first_index: int) -> torch.Tensor:
    """Floats as bfloat16, up or down at random by key and index; infinities and NaNs are preserved."""
    index = torch.arange(first_index, first_index + numbers.numel(), device=numbers.device)
    drawn = scatter(index + key & 0xFFFFFFFF) & 0xFFFF
    bits = numbers.flatten().view(torch.int32)
    rounded = (bits + drawn.int()) >> 16
    kept = bits >> 16 | numbers.flatten().isnan().int() << 6
    finite = bits & 0x7F800000 != 0x7F800000
    return torch.where(finite, rounded, kept).to(torch.int16).view(torch.bfloat16).view(numbers.shape)
