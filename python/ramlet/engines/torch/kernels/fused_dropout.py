# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (as in fused.py)
"""Dropout for CUDA, in Triton: the functions of plain.py, with the same masks and the same rounding.

Keys come from a tensor, not as arguments: a CUDA graph that is replayed reads those of its own batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramlet.engines.torch.kernels.plain import Dropout

COLUMNS = 1024


@triton.jit
def _scatter(counter):
    bits = counter * 0x9E3779B1
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit(do_not_specialize=["seq_len", "place", "threshold", "scale"])
def _dropout_kernel(
    out, x, keys, seq_len, width, place, threshold, scale, ADDS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    # The lower 32 bits of each: sums wrap around.
    key = tl.load(keys + row // seq_len).to(tl.uint32) + place.to(tl.uint32)
    key = _scatter(_scatter(key) + (row % seq_len).to(tl.uint32))
    hashes = _scatter(key + column.to(tl.uint32))
    factor = tl.where(hashes < threshold.to(tl.uint32), 0.0, scale)
    at = row.to(tl.int64) * width + column
    if ADDS:
        branch = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
        kept = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + branch * factor
    else:
        kept = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * factor
    tl.store(out + at, kept, mask=inside)


def dropout(x: Tensor, mask: Dropout) -> Tensor:
    out = torch.empty_like(x)
    _launch(out, x, mask, adds=False)
    return out


def dropout_add_(branch: Tensor, x: Tensor, mask: Dropout) -> None:
    _launch(branch, x, mask, adds=True)


def _launch(out: Tensor, x: Tensor, mask: Dropout, *, adds: bool) -> None:
    tokens, width = x.shape
    if not tokens:
        return
    columns = min(COLUMNS, triton.next_power_of_2(width))
    # Not fused to one multiply-add, so that results are rounded as on a CPU.
    _dropout_kernel[(tokens, triton.cdiv(width, columns))](
        *(out, x, mask.keys, tokens // len(mask.keys), width, mask.place, mask.threshold, mask.scale),
        *(adds, columns),
        num_warps=4,
        enable_fp_fusion=False,
    )
