# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (the kernels are in Triton's language, which only looks like Python and has no types that mypy knows)
"""AdamW's and Muon's steps on a GPU, each value read and written once: memory bounds everything here but the products.

A kernel scales the gradients, updates moments and weights, writes the weights for matrix products and clears the
gradients. torch does the same in seven passes. Rates and scales are tensors of one element, so that a step can be
captured in a CUDA graph. `row_scales`, `subtract` and `gram` are those of plain_update.py.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 1024
"""Per program: 8 per thread."""
_TILE = 64
"""Rows and columns, so that a transposed copy reads and writes whole cache lines."""


def adamw(
    weights: Tensor,
    products: Tensor,
    gradients: Tensor,
    moments: tuple[Tensor, Tensor],
    step: Tensor,
    rate: Tensor,
    grad_scale: Tensor,
    factors: tuple[float, float, float, float],
) -> None:
    """`products` are the weights for matrix products, or the weights themselves; `step` is the number of this one;
    the factors are beta1, beta2, eps and weight decay."""
    count = weights.numel()
    _adamw[(triton.cdiv(count, _ELEMENTS),)](
        *(weights, products, gradients, *moments, step, rate, grad_scale, count, *factors),
        COPY=products.data_ptr() != weights.data_ptr(),
        ELEMENTS=_ELEMENTS,
        num_warps=4,
    )


@triton.jit
def _adamw(
    weights, products, gradients, first, second, step, rate, grad_scale,
    count, beta1, beta2, eps, decay, COPY: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    lr = tl.load(rate)
    number = tl.load(step)
    gradient = tl.load(gradients + at, mask=inside, other=0.0) * tl.load(grad_scale)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    mean = tl.load(first + at, mask=inside, other=0.0)
    square = tl.load(second + at, mask=inside, other=0.0)
    mean += (gradient - mean) * (1 - beta1)
    square = square * beta2 + gradient * gradient * (1 - beta2)
    first_share = 1 - tl.exp(number * tl.log(beta1))
    second_share = 1 - tl.exp(number * tl.log(beta2))
    weight -= lr * decay * weight
    weight -= lr / first_share * mean / (tl.sqrt(square) / tl.sqrt(second_share) + eps)
    tl.store(first + at, mean, mask=inside)
    tl.store(second + at, square, mask=inside)
    tl.store(weights + at, weight, mask=inside)
    if COPY:
        tl.store(products + at, weight.to(products.dtype.element_ty), mask=inside)
    tl.store(gradients + at, tl.zeros([ELEMENTS], tl.float32), mask=inside)


def directions(x: Tensor, gradients: Tensor, momentum: Tensor, grad_scale: Tensor, keep: float) -> None:
    """Moves the momentum towards the gradients, and `x` gets gradients that are moved towards the momentum (Nesterov).

    (count, rows, columns) each; `x` may be transposed. The gradients are zero afterwards.
    """
    count, rows, columns = gradients.shape
    _directions[(triton.cdiv(columns, _TILE), triton.cdiv(rows, _TILE), count)](
        *(x, gradients, momentum, grad_scale, rows, columns, *x.stride(), gradients.stride(0), keep),
        TILE=_TILE,
        num_warps=4,
    )


@triton.jit
def _place(rows, columns, TILE: tl.constexpr):
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)[None, :]
    return tl.program_id(2).to(tl.int64), row, column, (row < rows) & (column < columns)


@triton.jit
def _directions(
    x, gradients, momentum, grad_scale, rows, columns, x_matrix, x_row, x_column, matrix, keep, TILE: tl.constexpr
):
    number, row, column, inside = _place(rows, columns, TILE)
    at = number * matrix + row * columns + column
    gradient = tl.load(gradients + at, mask=inside, other=0.0) * tl.load(grad_scale)
    moment = tl.load(momentum + at, mask=inside, other=0.0)
    moment += (gradient - moment) * (1 - keep)
    direction = gradient + (moment - gradient) * keep
    tl.store(momentum + at, moment, mask=inside)
    tl.store(gradients + at, tl.zeros([TILE, TILE], tl.float32), mask=inside)
    tl.store(x + number * x_matrix + row * x_row + column * x_column, direction.to(x.dtype.element_ty), mask=inside)


def row_scales(update: Tensor, row_squares: Tensor, factor: Tensor, decay: float, tiny: float) -> Tensor:
    count, rows, columns = update.shape
    squares = torch.empty((count, rows), device=update.device)
    _squares[(triton.cdiv(rows, _TILE), count)](
        *(update, squares, rows, columns, *update.stride()), TILE=_TILE, num_warps=4
    )
    _row_scales[(count,)](
        *(squares, row_squares, factor, rows, math.sqrt(max(rows, columns)), decay, tiny),
        ROWS=triton.next_power_of_2(rows),
        num_warps=4,
    )
    return squares


@triton.jit
def _squares(update, squares, rows, columns, matrix, x_row, x_column, TILE: tl.constexpr):
    number = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros([TILE, TILE], tl.float32)
    for first in range(0, columns, TILE):
        column = first + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = number * matrix + row[:, None] * x_row + column[None, :] * x_column
        wide = tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        total += wide * wide
    tl.store(squares + number * rows + row, tl.sum(total, axis=1) / columns, mask=row < rows)


@triton.jit
def _row_scales(squares, row_squares, factor, rows, size, decay, tiny, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = tl.program_id(0) * rows + row
    inside = row < rows
    square = tl.load(squares + at, mask=inside, other=0.0)
    running = tl.load(row_squares + at, mask=inside, other=0.0)
    running += (square - running) * (1 - decay)
    tl.store(row_squares + at, running, mask=inside)
    scale = tl.rsqrt(running + tiny)
    even = tl.sum(tl.where(inside, square * scale * scale, 0.0), axis=0)
    whole = tl.sqrt((tl.sum(square, axis=0) + tiny) / (even + tiny))
    tl.store(squares + at, scale * whole * size * tl.load(factor), mask=inside)


def subtract(weights: Tensor, products: Tensor, update: Tensor, scales: Tensor, keep: Tensor) -> None:
    count, rows, columns = weights.shape
    _subtract[(triton.cdiv(columns, _TILE), triton.cdiv(rows, _TILE), count)](
        *(weights, products, update, scales, keep, rows, columns, weights.stride(0), *update.stride()),
        COPY=products.data_ptr() != weights.data_ptr(),
        TILE=_TILE,
        num_warps=4,
    )


@triton.jit
def _subtract(
    weights, products, update, scales, keep, rows, columns, matrix, x_matrix, x_row, x_column,
    COPY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    number, row, column, inside = _place(rows, columns, TILE)
    at = number * matrix + row * columns + column
    change = tl.load(update + number * x_matrix + row * x_row + column * x_column, mask=inside, other=0.0)
    scale = tl.load(scales + number * rows + row, mask=row < rows, other=0.0)
    weight = tl.load(weights + at, mask=inside, other=0.0) * tl.load(keep) - scale * change.to(tl.float32)
    tl.store(weights + at, weight, mask=inside)
    if COPY:
        tl.store(products + at, weight.to(products.dtype.element_ty), mask=inside)


_SIDE, _DEPTH = 128, 64
_STAGES = 3
"""Of the pipeline of loads, if the device has shared memory for as many. Four are slower on an H200."""


@cache
def _stages(device: int) -> int:
    bytes_per_stage = 2 * _SIDE * _DEPTH * 2
    properties: Any = torch.cuda.get_device_properties(device)
    available: int = properties.shared_memory_per_block_optin
    return max(1, min(_STAGES, available // bytes_per_stage))


def gram(x: Tensor, alpha: float = 1.0, beta: float = 0.0, diagonal: float = 0.0) -> Tensor:
    """The result is symmetric, so half of its tiles are computed."""
    count, rows, columns = x.shape
    out = torch.empty((count, rows, rows), dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(rows, _SIDE)
    _gram[(tiles * (tiles + 1) // 2, count)](
        *(x, out, rows, columns, alpha, beta, diagonal),
        ADD=beta != 0.0,
        SIDE=_SIDE,
        DEPTH=_DEPTH,
        num_warps=8,
        num_stages=_stages(x.get_device()) if x.is_cuda else 1,
    )
    return out


@triton.jit
def _gram(
    x, out, rows, columns, alpha, beta, diagonal, ADD: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    # The tile in row i and column j <= i; rounding of the square root is corrected.
    tile = tl.program_id(0)
    i = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
    j = tile - i * (i + 1) // 2
    number = tl.program_id(1).to(tl.int64)
    x += number * rows * columns
    out += number * rows * rows
    row = i * SIDE + tl.arange(0, SIDE)
    other = j * SIDE + tl.arange(0, SIDE)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for first in range(0, columns, DEPTH):
        column = first + depth[None, :]
        wide = column < columns
        left = tl.load(x + row[:, None] * columns + column, mask=(row < rows)[:, None] & wide, other=0.0)
        right = tl.load(x + other[:, None] * columns + column, mask=(other < rows)[:, None] & wide, other=0.0)
        total = tl.dot(left, tl.trans(right), total)
    total *= alpha
    inside = (row < rows)[:, None] & (other < rows)[None, :]
    at = row[:, None] * rows + other[None, :]
    if ADD:
        total += beta * tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(row[:, None] == other[None, :], diagonal, 0.0)
    result = total.to(out.dtype.element_ty)
    tl.store(out + at, result, mask=inside)
    if i != j:
        mirrored = (other < rows)[:, None] & (row < rows)[None, :]
        tl.store(out + other[:, None] * rows + row[None, :], tl.trans(result), mask=mirrored)
