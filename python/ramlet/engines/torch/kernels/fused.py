# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (the kernels are in Triton's language, which only looks like Python and has no types that mypy knows)
"""The kernels for CUDA, in Triton: the functions of plain.py, each in one or two passes over memory.

Everything except matrix products and attention is memory-bound, so a kernel reads each value once, computes in fp32
in registers and writes once. `cross_entropy_` reads twice, the second time mostly from the L2 cache: a row of logits
is too long for registers. Compiling everything takes a second or two, once per model shape: Triton caches the result
on disk; the number of tokens, `eps` and `scale` are arguments; and block sizes are fixed here instead of autotuned,
which would cost seconds and memory. Nothing synchronizes with the device, so everything can be captured in a CUDA
graph.

    dx = norm_backward(dy, x, gain, 1e-5, gain_grad)       # gain_grad += the gradient from these tokens

The order of sums depends on the shapes alone, without atomics: the same input gives the same bits. The tensors must
be on the current device; labels and positions must be in range. `unit` is ignored: sums over tokens are over all of
them at once.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramlet.engines.torch.kernels.fused_dropout import dropout as dropout
from ramlet.engines.torch.kernels.fused_dropout import dropout_add_ as dropout_add_
from ramlet.engines.torch.kernels.fused_fp8 import norm_fp8 as norm_fp8
from ramlet.engines.torch.kernels.fused_fp8 import to_fp8 as to_fp8
from ramlet.engines.torch.kernels.fused_heads import qk_norm as qk_norm
from ramlet.engines.torch.kernels.fused_heads import qk_norm_backward as qk_norm_backward
from ramlet.engines.torch.kernels.fused_sums import add_sums
from ramlet.engines.torch.kernels.plain import IGNORE
from ramlet.engines.torch.kernels.plain import grad_norm as grad_norm  # a kernel would not be faster

# About eight per multiprocessor of an H100 or H200, and the same on every device, so that sums are the same.
GAIN_PROGRAMS = 1024
"""Programs that share the rows of `norm_backward`; each writes a row of `width` fp32 sums."""

_IGNORE = tl.constexpr(IGNORE)
_LOWEST = tl.constexpr(-1e38)
_LOG2_E = tl.constexpr(1.4426950408889634)


@lru_cache(maxsize=64)
def _tile(width: int, elements: int) -> tuple[int, int, int]:
    """Rows and columns of a tile of about `elements` that spans a row, and its warps."""
    columns: int = triton.next_power_of_2(width)
    rows = max(1, elements // columns)
    # Up to 32 values per thread: enough loads in flight to hide memory latency, few enough for the registers.
    return rows, columns, min(16, max(4, columns // 1024))


@triton.jit(do_not_specialize=["tokens"])
def _norm_kernel(x, gain, out, tokens, width, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < tokens) & (column < width)
    at = row * width + column
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / width + eps)[:, None]
    tl.store(out + at, wide * scale * factor, mask=inside)


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    tokens, width = x.shape
    out = torch.empty_like(x)
    rows, columns, warps = _tile(width, 2048)
    _norm_kernel[(triton.cdiv(tokens, rows),)](x, gain, out, tokens, width, eps, rows, columns, num_warps=warps)
    return out


@triton.jit(do_not_specialize=["tokens"])
def _norm_backward_kernel(
    dy, x, gain, added, dx, sums, tokens, width, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)[None, :]
    factor = tl.load(gain + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, tokens, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
        inside = (row < tokens) & (column < width)
        at = row * width + column
        wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / width + eps)[:, None]
        normed = wide * scale
        total += tl.sum(grad * normed, axis=0)
        grad = grad * factor
        shared = (tl.sum(grad * normed, axis=1) / width)[:, None]
        result = scale * (grad - normed * shared)
        if ADD:
            result += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at, result, mask=inside)
    column = tl.arange(0, COLUMNS)
    tl.store(sums + tl.program_id(0) * width + column, total, mask=column < width)


def norm_backward(
    dy: Tensor, x: Tensor, gain: Tensor, eps: float, gain_grad: Tensor, unit: int = 0, added: Tensor | None = None
) -> Tensor:
    tokens, width = x.shape
    dx = torch.empty_like(x)
    rows, columns, warps = _tile(width, 1024)
    programs = min(GAIN_PROGRAMS, triton.cdiv(tokens, rows))
    sums = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    warps = max(2, warps // 2)
    _norm_backward_kernel[(programs,)](
        *(dy, x, gain, x if added is None else added, dx, sums, tokens, width, eps),
        *(added is not None, rows, columns, 3),
        num_warps=warps,
    )
    add_sums([gain_grad], sums)
    return dx


@triton.jit(do_not_specialize=["heads", "sign"])
def _rotate_kernel(
    qkv, cos, sin, positions, width, heads, sign, HALF: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < heads) & (column < HALF)
    angle = tl.load(positions + token).to(tl.int64) * HALF + column
    c = tl.load(cos + angle, mask=column < HALF, other=0.0)
    s = tl.load(sin + angle, mask=column < HALF, other=0.0) * sign
    at = qkv + token * width + head * (2 * HALF) + column
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, first * c - second * s, mask=inside)
    tl.store(at + HALF, second * c + first * s, mask=inside)


def rotate_(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, inverse: bool = False) -> None:
    tokens, width = qkv.shape
    half = cos.shape[1]
    columns = triton.next_power_of_2(half)
    at_once = min(triton.next_power_of_2(heads), max(1, 1024 // columns))
    _rotate_kernel[(tokens, triton.cdiv(heads, at_once))](
        qkv, cos, sin, positions, width, heads, -1.0 if inverse else 1.0, half, at_once, columns, num_warps=4
    )


@triton.jit
def _gate_kernel(gate_up, out, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    at = gate_up + row * (2 * width) + column
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, first * tl.sigmoid(first) * second, mask=inside)


def gate(gate_up: Tensor) -> Tensor:
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    _gate_kernel[(tokens, triton.cdiv(width, 1024))](gate_up, out, width, 1024, num_warps=4)
    return out


@triton.jit
def _gate_backward_kernel(gate_up, d_act, act, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    at = gate_up + row * (2 * width) + column
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(d_act + row * width + column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(first)
    silu = first * sigmoid
    tl.store(act + row * width + column, silu * second, mask=inside)
    tl.store(at, grad * second * sigmoid * (1 + first * (1 - sigmoid)), mask=inside)
    tl.store(at + width, grad * silu, mask=inside)


def gate_backward_(gate_up: Tensor, d_act: Tensor) -> Tensor:
    tokens, width = d_act.shape
    act = torch.empty_like(d_act)
    _gate_backward_kernel[(tokens, triton.cdiv(width, 1024))](gate_up, d_act, act, width, 1024, num_warps=4)
    return act


@triton.jit
def _cross_entropy_kernel(logits, labels, losses, vocab, width, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    logits += token * width
    label = tl.load(labels + token)
    # The row is processed in tiles of consecutive columns. A thread owns whole columns of a tile, so threads need not
    # communicate about the running maxima and sums until the end.
    within = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if label == _IGNORE:
        for first in range(0, width, ROWS * COLUMNS):
            column = first + within
            tl.store(logits + column, tl.zeros([ROWS, COLUMNS], tl.float32), mask=column < width)
        tl.store(losses + token, 0.0)
    else:
        # Arithmetic takes longer than memory here: tiles without padding need no mask, and powers of two fewer
        # operations than exponentials.
        whole = vocab // (ROWS * COLUMNS) * (ROWS * COLUMNS)
        wanted = tl.load(logits + label).to(tl.float32)
        # Finite, so that a thread that has seen only padding does not compute inf - inf.
        highest = tl.full([COLUMNS], _LOWEST, tl.float32)
        total = tl.zeros([COLUMNS], tl.float32)
        for first in range(0, whole, ROWS * COLUMNS):
            wide = tl.load(logits + first + within).to(tl.float32)
            highest, total = _more(highest, total, wide)
        for first in range(whole, width, ROWS * COLUMNS):
            column = first + within
            # The mask uses `width`, not `vocab`: only a multiple of 16 allows loads of 16 bytes.
            wide = tl.load(logits + column, mask=column < width, other=-float("inf")).to(tl.float32)
            highest, total = _more(highest, total, tl.where(column < vocab, wide, -float("inf")))
        top = tl.max(highest, axis=0)
        log_sum = top + tl.log2(tl.sum(total * tl.exp2(highest - top), axis=0))
        tl.store(losses + token, log_sum / _LOG2_E - wanted)
        for first in range(0, whole, ROWS * COLUMNS):
            wide = tl.load(logits + first + within).to(tl.float32)
            tl.store(logits + first + within, tl.exp2(wide * _LOG2_E - log_sum) * scale)
        for first in range(whole, width, ROWS * COLUMNS):
            column = first + within
            wide = tl.load(logits + column, mask=column < width, other=-float("inf")).to(tl.float32)
            share = tl.where(column < vocab, tl.exp2(wide * _LOG2_E - log_sum), 0.0)
            tl.store(logits + column, share * scale, mask=column < width)
        tl.debug_barrier()  # another thread may have written the label's share
        tl.store(logits + label, (tl.exp2(wanted * _LOG2_E - log_sum) - 1.0) * scale)


@triton.jit
def _more(highest, total, wide):
    """The maxima of columns, times log2(e), and the sums of powers relative to them, with another tile.

    The maxima are multiplied before they are compared. The difference of two products may be one fused operation, which
    does not round the first: where a thread has seen only padding, that would be a power of 1e31 instead of 0.
    """
    higher = tl.maximum(highest, tl.max(wide, axis=0) * _LOG2_E)
    total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(wide * _LOG2_E - higher[None, :]), axis=0)
    return higher, total


# On an H200 4,096 rows of 50,304 take 258 us, and 310 us with half or twice the tile and warps: of more programs at a
# time the rows do not fit into the L2 cache, from which they are read the second time.
def cross_entropy_(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
    tokens, width = logits.shape
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    _cross_entropy_kernel[(tokens,)](logits, labels, losses, vocab, width, scale, 2, 4096, num_warps=16)
    return losses


_WIDE_SUMS = hasattr(torch.ops.aten.addmm, "dtype_out")  # torch 2.8


def accumulate_(grad: Tensor, dy: Tensor, x: Tensor, unit: int = 0) -> None:
    """grad += dy^T @ x, for dy (tokens, out), x (tokens, in) and an fp32 grad (out, in).

    If torch supports it, the matrix product of bf16 or fp16 accumulates in fp32 itself, without rounding in between and
    without a second pass over `grad`.
    """
    if x.dtype == grad.dtype:
        grad.addmm_(dy.t(), x)
    elif _WIDE_SUMS and grad.is_cuda:
        torch.addmm(grad, dy.t(), x, out_dtype=grad.dtype, out=grad)
    else:
        grad.add_(dy.t() @ x)
