"""The steps on a GPU: one Triton kernel per parameter, with the same operations as the native core.

Fused multiply-adds are disabled, and square roots and quotients are rounded correctly, so that codes and weights are
bit-identical to the CPU's. 16 bytes of memory traffic per element instead of 28 for 32-bit AdamW.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"
# Triton has no types, and its kernels are called with other arguments than they declare.

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ramlet.engines.torch.optim.factors import BLOCK, Factors
from ramlet.engines.torch.optim.state import Moments

_BLOCKS = 4  # per program; 1024 elements on 4 warps are 8 per thread


def step(
    weights: torch.Tensor, gradients: torch.Tensor, moments: Moments, factors: Factors, key: int, first_index: int
) -> None:
    """Updates flat tensors, which start at `first_index` of the parameter."""
    count = weights.numel()
    if count == 0:
        return
    _step[(triton.cdiv(count, _BLOCKS * BLOCK),)](
        weights,
        gradients,
        moments.first,
        moments.first_scales,
        moments.root,
        moments.root_scales,
        count,
        # As a signed 32-bit integer, which the kernel uses: only the lower 32 bits matter.
        (key + first_index + 2**31) % 2**32 - 2**31,
        factors.first_decay,
        factors.first_gain,
        factors.root_decay,
        factors.root_gain,
        factors.rate,
        factors.eps,
        factors.keep,
        blocks=_BLOCKS,
        block_size=BLOCK,
        narrow=weights.dtype == torch.bfloat16,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["counter"])
def _step(
    weights_pointer,
    gradients_pointer,
    first_pointer,
    first_scales_pointer,
    root_pointer,
    root_scales_pointer,
    count,
    counter,
    first_decay,
    first_gain,
    root_decay,
    root_gain,
    rate,
    eps,
    keep,
    blocks: tl.constexpr,
    block_size: tl.constexpr,
    narrow: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)
    index = block[:, None] * block_size + tl.arange(0, block_size)[None, :]
    inside = index < count
    scaled = block * block_size < count
    gradient = tl.load(gradients_pointer + index, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weights_pointer + index, mask=inside, other=0.0).to(tl.float32)
    first_code = tl.load(first_pointer + index, mask=inside, other=0).to(tl.int32)
    root_code = tl.load(root_pointer + index, mask=inside, other=0).to(tl.int32)
    first_scale = tl.load(first_scales_pointer + block, mask=scaled, other=0.0) * first_decay
    root_scale = tl.load(root_scales_pointer + block, mask=scaled, other=0.0) * root_decay

    magnitude = tl.where(first_code & 0x7F == 0, 0.0, _decode(first_code & 0x7F, 7))
    first = tl.where(first_code >= 0x80, -magnitude, magnitude) * first_scale[:, None] + first_gain * gradient
    root = _decode(root_code, 8) * root_scale[:, None]
    gained = root_gain * gradient
    root = tl.sqrt_rn(root * root + gained * gained)
    weight = keep * weight - tl.div_rn(rate * first, root + eps)
    if narrow:
        rounded = _round_stochastically(weight, counter + index.to(tl.int32))
        tl.store(weights_pointer + index, rounded, mask=inside)
    else:
        tl.store(weights_pointer + index, weight, mask=inside)

    # Lanes beyond the end may decode to nonzero values; they must not set the scale.
    first = tl.where(inside, first, 0.0)
    root = tl.where(inside, root, 0.0)
    first_scale = _scale(first)
    sign = (first.to(tl.int32, bitcast=True) >> 24) & 0x80
    first_code = tl.where((first_scale > 0.0)[:, None], _encode(first, first_scale, 7) | sign, 0)
    root_scale = _scale(root)
    root_code = tl.where((root_scale > 0.0)[:, None], _encode(root, root_scale, 8), 0)
    tl.store(first_scales_pointer + block, first_scale, mask=scaled)
    tl.store(root_scales_pointer + block, root_scale, mask=scaled)
    tl.store(first_pointer + index, first_code.to(tl.uint8), mask=inside)
    tl.store(root_pointer + index, root_code.to(tl.uint8), mask=inside)


def momentum(gradients: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, decay: float, gain: float) -> None:
    """Moves Muon's momentum, flat codes and scales, towards the gradients, and the gradients towards the momentum."""
    count = gradients.numel()
    _momentum[(triton.cdiv(count, _BLOCKS * BLOCK),)](
        gradients,
        codes,
        scales,
        count,
        decay,
        gain,
        blocks=_BLOCKS,
        block_size=BLOCK,
        narrow=gradients.dtype == torch.bfloat16,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def _momentum(
    gradients_pointer,
    codes_pointer,
    scales_pointer,
    count,
    decay,
    gain,
    blocks: tl.constexpr,
    block_size: tl.constexpr,
    narrow: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)
    index = block[:, None] * block_size + tl.arange(0, block_size)[None, :]
    inside = index < count
    scaled = block * block_size < count
    gained = gain * tl.load(gradients_pointer + index, mask=inside, other=0.0).to(tl.float32)
    code = tl.load(codes_pointer + index, mask=inside, other=0).to(tl.float32)
    scale = tl.load(scales_pointer + block, mask=scaled, other=0.0) * decay
    moment = code * scale[:, None] + gained
    direction = decay * moment + gained
    if narrow:
        tl.store(gradients_pointer + index, _round_to_nearest(direction), mask=inside)
    else:
        tl.store(gradients_pointer + index, direction, mask=inside)
    scale = _scale(moment) * 0.007874015748031496  # 1 / 127
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)  # 2^-126
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    # The sum is in [2^23, 2^24), where all floats are integers.
    integer = (moment * inverse[:, None] + 12582912.0).to(tl.int32, bitcast=True)
    code = tl.where((scale > 0.0)[:, None], integer, 0)
    tl.store(scales_pointer + block, scale, mask=scaled)
    tl.store(codes_pointer + index, code.to(tl.int8), mask=inside)


def subtract(weights: torch.Tensor, changes: torch.Tensor, keep: float, key: int) -> None:
    """`keep * weights - changes`, rounded to bf16 by the key and the place in memory; (count, rows, columns) each."""
    count, size = len(weights), weights[0].numel()
    _subtract[(triton.cdiv(size, _BLOCKS * BLOCK), count)](
        weights,
        changes,
        size,
        weights.stride(0),
        (key + weights.storage_offset() + 2**31) % 2**32 - 2**31,
        keep,
        elements=_BLOCKS * BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["counter"])
def _subtract(weights_pointer, changes_pointer, size, stride, counter, keep, elements: tl.constexpr):
    matrix = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0).to(tl.int64) * elements + tl.arange(0, elements)
    inside = index < size
    place = matrix * stride + index
    weight = tl.load(weights_pointer + place, mask=inside, other=0.0).to(tl.float32)
    change = tl.load(changes_pointer + matrix * size + index, mask=inside, other=0.0)
    rounded = _round_stochastically(keep * weight - change, counter + place.to(tl.int32))
    tl.store(weights_pointer + place, rounded, mask=inside)


@triton.jit
def _decode(code, width: tl.constexpr):
    n = (code + 1).to(tl.float32)
    exponent = (n.to(tl.int32, bitcast=True) >> 23) - 127
    leading = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    power = ((2 * exponent + (127 - 3 * width)) << 23).to(tl.float32, bitcast=True)
    return (6.0 * (n - leading) + n) * power


@triton.jit
def _scale(moments):
    """The maximum of the bits, which sort like magnitudes with NaN on top: a maximum of floats may drop a NaN."""
    most = tl.max(moments.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    scale = most.to(tl.float32, bitcast=True)
    scale = tl.where(most < 0x00800000, 0.0, scale)
    return tl.where(most < 0x7F800000, scale, float("nan"))


@triton.jit
def _encode(moments, scale, width: tl.constexpr):
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    share = (moments.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True) * inverse[:, None]
    # Powers of two as bits: (127 - 3 width) << 23 is 8^-width.
    lowest = (127 - 3 * width) << 23
    bits = tl.maximum(share.to(tl.int32, bitcast=True), lowest)
    share = bits.to(tl.float32, bitcast=True)
    level = ((bits >> 23) - (127 - 3 * width)) * 11 & ~31
    slope = (0x3E124925 + ((3 * width) << 23) - (level << 19)).to(tl.float32, bitcast=True)  # 1/7 and 6/7 as bits
    offset = (0x3F5B6DB7 + (level << 18)).to(tl.float32, bitcast=True)
    rounded = share * slope + offset + 8388607.0
    return rounded.to(tl.int32, bitcast=True) & 0xFF


@triton.jit
def _round_stochastically(numbers, counter):
    drawn = counter.to(tl.uint32, bitcast=True) * 0x9E3779B1
    drawn = (drawn ^ (drawn >> 16)) * 0x7FEB352D
    drawn = (drawn ^ (drawn >> 15)) * 0x846CA68B
    drawn = (drawn ^ (drawn >> 16)) & 0xFFFF
    return _narrow(numbers, drawn)


@triton.jit
def _round_to_nearest(numbers):
    """Ties to even. A cast would do, but Triton's interpreter cuts off."""
    bits = numbers.to(tl.uint32, bitcast=True)
    return _narrow(numbers, 0x7FFF + ((bits >> 16) & 1))


@triton.jit
def _narrow(numbers, added):
    """The upper half of the sum of a number's bits and those added; infinities and NaNs are preserved."""
    bits = numbers.to(tl.uint32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    kept = tl.where(nan, bits | 0x00400000, bits)
    rounded = tl.where(finite, bits + added, kept) >> 16
    return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
