# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (as in fused.py)
"""Inputs of fp8 products for CUDA, in Triton: the functions of plain.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramlet.engines.torch.kernels.plain import FP8, HIGHEST_FP8

_HIGHEST = tl.constexpr(HIGHEST_FP8)
_ELEMENTS = 4096


@triton.jit
def _rounded(wide, out):
    return tl.minimum(tl.maximum(wide, -_HIGHEST), _HIGHEST).to(out.dtype.element_ty)


@triton.jit(do_not_specialize=["count"])
def _convert_kernel(x, out, count, scale, ELEMENTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale
    tl.store(out + at, _rounded(wide, out), mask=inside)


def to_fp8(x: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty(x.shape, dtype=FP8, device=x.device)
    count = x.numel()
    _convert_kernel[(triton.cdiv(count, _ELEMENTS),)](x, out, count, scale, _ELEMENTS, num_warps=8)
    return out


@triton.jit(do_not_specialize=["tokens"])
def _norm_kernel(x, gain, out, tokens, width, eps, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < tokens) & (column < width)
    at = row * width + column
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    gains = tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32) * factor
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / width + eps)[:, None]
    tl.store(out + at, _rounded(wide * scale * gains, out), mask=inside)


def norm_fp8(x: Tensor, gain: Tensor, eps: float, scale: float) -> Tensor:
    tokens, width = x.shape
    out = torch.empty(x.shape, dtype=FP8, device=x.device)
    columns: int = triton.next_power_of_2(width)
    rows = max(1, 2048 // columns)
    warps = min(16, max(4, columns // 1024))
    _norm_kernel[(triton.cdiv(tokens, rows),)](x, gain, out, tokens, width, eps, scale, rows, columns, num_warps=warps)
    return out
