# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# (the kernels are in Triton's language, which only looks like Python and has no types that mypy knows)
"""QK-norm and rotary positions for CUDA, in one pass over memory each way (see fused.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramlet.engines.torch.kernels.fused_sums import add_sums
from ramlet.engines.torch.kernels.plain import Heads

_PROGRAMS = 528
"""That share the tokens in the backward pass: four per multiprocessor of an H100 or H200, the same on every device, so
that sums are the same."""


@triton.jit(do_not_specialize=["tokens"])
def _qk_norm_kernel(
    qkv, out, query_gain, key_gain, cos, sin, positions, tokens, qkv_width, eps,
    QUERIES: tl.constexpr, COUNT: tl.constexpr, HALF: tl.constexpr, COLUMNS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < COUNT) & (column < HALF)
    at = qkv + token * qkv_width + head * (2 * HALF) + column
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(first * first + second * second, axis=1) / (2 * HALF) + eps)[:, None]
    first_gain, second_gain = _head_gains(query_gain, key_gain, head, column, QUERIES, HALF)
    first, second = first * scale * first_gain, second * scale * second_gain
    angle = tl.load(positions + token).to(tl.int64) * HALF + column
    c = tl.load(cos + angle, mask=column < HALF, other=0.0)
    s = tl.load(sin + angle, mask=column < HALF, other=0.0)
    to = out + token * (COUNT * 2 * HALF) + head * (2 * HALF) + column
    tl.store(to, first * c - second * s, mask=inside)
    tl.store(to + HALF, second * c + first * s, mask=inside)


@triton.jit
def _head_gains(query_gain, key_gain, head, column, QUERIES: tl.constexpr, HALF: tl.constexpr):
    query, wide = head < QUERIES, column < HALF
    first = tl.where(
        query, tl.load(query_gain + column, mask=wide, other=0.0), tl.load(key_gain + column, mask=wide, other=0.0)
    )
    second = tl.where(
        query,
        tl.load(query_gain + HALF + column, mask=wide, other=0.0),
        tl.load(key_gain + HALF + column, mask=wide, other=0.0),
    )
    return first, second


def qk_norm(qkv: Tensor, heads: Heads) -> Tensor:
    """Queries and keys, (tokens, `heads.columns`): each head RMS-normalized, times its gain, then rotated."""
    tokens, half = len(qkv), heads.cos.shape[1]
    out = torch.empty((tokens, heads.columns), dtype=qkv.dtype, device=qkv.device)
    count = heads.heads + heads.kv_heads
    columns = triton.next_power_of_2(half)
    at_once = min(triton.next_power_of_2(count), max(1, 1024 // columns))
    _qk_norm_kernel[(tokens, triton.cdiv(count, at_once))](
        *(qkv, out, heads.query_gain, heads.key_gain, heads.cos, heads.sin, heads.positions),
        *(tokens, qkv.shape[1], heads.eps, heads.heads, count, half, columns, at_once),
        num_warps=2,
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def _qk_norm_backward_kernel(
    d_q, d_k, d_v, d_qkv, qkv, query_gain, key_gain, cos, sin, positions, sums,
    tokens, q_width, k_width, v_width, qkv_width, eps,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, QUERY_GROUPS: tl.constexpr, KEY_GROUPS: tl.constexpr,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    # A program owns a group of heads, all of queries, keys or values, and every so many-th token. It keeps the sum of
    # its gain's gradient. The values' gradient is only copied.
    group = tl.program_id(1)
    column = tl.arange(0, COLUMNS)[None, :]
    wide = column < HALF
    if group < QUERY_GROUPS:
        grad, width, gain, first_head, count = d_q, q_width, query_gain, 0, QUERIES
    elif group < QUERY_GROUPS + KEY_GROUPS:
        grad, width, gain, first_head, count = d_k, k_width, key_gain, QUERIES, KEYS
        group -= QUERY_GROUPS
    else:
        grad, width, gain, first_head, count = d_v, v_width, key_gain, QUERIES + KEYS, KEYS
        group -= QUERY_GROUPS + KEY_GROUPS
    is_value = tl.program_id(1) >= QUERY_GROUPS + KEY_GROUPS
    head = group * HEADS + tl.arange(0, HEADS)[:, None]
    inside = (head < count) & wide
    first_gain = tl.load(gain + column, mask=wide, other=0.0)
    second_gain = tl.load(gain + HALF + column, mask=wide, other=0.0)
    first_sum = tl.zeros([HEADS, COLUMNS], tl.float32)
    second_sum = tl.zeros([HEADS, COLUMNS], tl.float32)
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = tl.cast(number, tl.int64)
        given = grad + token * width + head * (2 * HALF) + column
        d_first = tl.load(given, mask=inside, other=0.0).to(tl.float32)
        d_second = tl.load(given + HALF, mask=inside, other=0.0).to(tl.float32)
        at = token * qkv_width + (first_head + head) * (2 * HALF) + column
        if not is_value:
            first = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(qkv + at + HALF, mask=inside, other=0.0).to(tl.float32)
            angle = tl.load(positions + token).to(tl.int64) * HALF + column
            c = tl.load(cos + angle, mask=wide, other=0.0)
            s = tl.load(sin + angle, mask=wide, other=0.0)
            a, b = d_first * c + d_second * s, d_second * c - d_first * s
            scale = tl.rsqrt(tl.sum(first * first + second * second, axis=1) / (2 * HALF) + eps)[:, None]
            first, second = first * scale, second * scale
            first_sum += a * first
            second_sum += b * second
            a, b = a * first_gain, b * second_gain
            shared = (tl.sum(a * first + b * second, axis=1) / (2 * HALF))[:, None]
            d_first, d_second = scale * (a - first * shared), scale * (b - second * shared)
        tl.store(d_qkv + at, d_first, mask=inside)
        tl.store(d_qkv + at + HALF, d_second, mask=inside)
    if not is_value:
        # The rows of query programs first.
        row = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        to = sums + row * (2 * HALF) + tl.arange(0, COLUMNS)
        tl.store(to, tl.sum(first_sum, axis=0), mask=tl.arange(0, COLUMNS) < HALF)
        tl.store(to + HALF, tl.sum(second_sum, axis=0), mask=tl.arange(0, COLUMNS) < HALF)


def qk_norm_backward(
    grads: Sequence[Tensor], qkv: Tensor, heads: Heads, query_gain_grad: Tensor, key_gain_grad: Tensor, unit: int = 0
) -> Tensor:
    """The gradient of `qkv` from those of queries, keys and values, which need not lie together."""
    tokens, half = len(qkv), heads.cos.shape[1]
    grads = [grad if grad.stride(1) == 1 else grad.contiguous() for grad in grads]
    columns = triton.next_power_of_2(half)
    at_once = min(triton.next_power_of_2(max(heads.heads, heads.kv_heads)), max(1, 512 // columns))
    query_groups, key_groups = (triton.cdiv(count, at_once) for count in (heads.heads, heads.kv_heads))
    programs = min(_PROGRAMS, tokens)
    sums = torch.empty((programs * (query_groups + key_groups), 2 * half), dtype=torch.float32, device=qkv.device)
    d_qkv = torch.empty_like(qkv)
    _qk_norm_backward_kernel[(programs, query_groups + 2 * key_groups)](
        *(*grads, d_qkv, qkv, heads.query_gain, heads.key_gain, heads.cos, heads.sin, heads.positions, sums),
        *(tokens, *(grad.stride(0) for grad in grads), qkv.shape[1], heads.eps, heads.heads, heads.kv_heads),
        *(query_groups, key_groups, half, columns, at_once),
        num_warps=4,
    )
    if query_groups == key_groups:
        add_sums([query_gain_grad, key_gain_grad], sums)
    else:
        of_queries = programs * query_groups
        add_sums([query_gain_grad], sums[:of_queries])
        add_sums([key_gain_grad], sums[of_queries:])
    return d_qkv
