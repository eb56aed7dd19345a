"""The kernels in Rust, for fp32 and bf16 on the CPU: few passes over memory, the same bits with any number of threads.

They have the contracts of `plain`, which also takes what they do not: other devices and types, strided tensors. Two
things differ. A label or position out of range is an IndexError before anything is written. An ignored row has gradient
0 whatever is in it, also NaN.

They work in the threads of torch (`torch.set_num_threads`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ramlet import _native
from ramlet.engines.torch.kernels import plain
from ramlet.engines.torch.kernels.plain import Heads


# Loops, not `all(...)`, which takes longer than the smallest kernels.
def _ours(first: Tensor, *like: Tensor) -> bool:
    """Whether all are of one type that the native kernels know, on the CPU, without gaps."""
    dtype = first.dtype
    if (dtype is not torch.bfloat16 and dtype is not torch.float32) or not _flat(first):
        return False
    for tensor in like:  # noqa: SIM110
        if tensor.dtype is not dtype or not _flat(tensor):
            return False
    return True


def _flat(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.is_cpu


def _flat_fp32(*tensors: Tensor) -> bool:
    for tensor in tensors:  # noqa: SIM110
        if tensor.dtype is not torch.float32 or not _flat(tensor):
            return False
    return True


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm: x over its root mean square, times the gain."""
    if not (_ours(x) and _flat_fp32(gain)):
        return plain.norm(x, gain, eps)
    rows, width = x.shape
    out = torch.empty_like(x)
    _native.kernel_norm(
        x.dtype is torch.bfloat16,
        x.data_ptr(),
        gain.data_ptr(),
        eps,
        out.data_ptr(),
        rows,
        width,
        torch.get_num_threads(),
    )
    return out


def norm_backward(dy: Tensor, x: Tensor, gain: Tensor, eps: float, gain_grad: Tensor, unit: int = 0) -> Tensor:
    """dx; the gain's gradient is added to `gain_grad`."""
    if not (_ours(x, dy) and _flat_fp32(gain, gain_grad)):
        return plain.norm_backward(dy, x, gain, eps, gain_grad, unit)
    rows, width = x.shape
    dx = torch.empty_like(x)
    _native.kernel_norm_backward(
        x.dtype is torch.bfloat16,
        dy.data_ptr(),
        x.data_ptr(),
        gain.data_ptr(),
        eps,
        gain_grad.data_ptr(),
        dx.data_ptr(),
        rows,
        width,
        unit or max(1, rows),
        torch.get_num_threads(),
    )
    return dx


def rotate_(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, inverse: bool = False) -> None:
    """Turns the first `heads` heads of every row by the angles of its position, in place; the rest stays."""
    wide = positions.dtype is torch.int64
    if not (_ours(qkv) and _flat_fp32(cos, sin) and _flat(positions) and (wide or positions.dtype is torch.int32)):
        return plain.rotate_(qkv, cos, sin, positions, heads, inverse)
    rows, width = qkv.shape
    context, half = cos.shape
    _native.kernel_rotate(
        qkv.dtype is torch.bfloat16,
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        positions.data_ptr(),
        wide,
        rows,
        width,
        context,
        half,
        heads,
        inverse,
        torch.get_num_threads(),
    )
    return None


def qk_norm(qkv: Tensor, heads: Heads) -> Tensor:
    """Queries and keys, (tokens, `heads.columns`): each head RMS-normalized, times its gain, then rotated."""
    if not (_ours(qkv) and _takes(heads)):
        return plain.qk_norm(qkv, heads)
    out = torch.empty((len(qkv), heads.columns), dtype=qkv.dtype)
    _native.kernel_qk_norm(
        qkv.dtype is torch.bfloat16,
        qkv.data_ptr(),
        out.data_ptr(),
        _tables(heads),
        heads.eps,
        _sizes(qkv, heads),
        torch.get_num_threads(),
    )
    return out


def qk_norm_backward_(
    grad: Tensor, qkv: Tensor, heads: Heads, query_gain_grad: Tensor, key_gain_grad: Tensor, unit: int = 0
) -> None:
    """In place: the gradient of queries, keys and values becomes the gradient of `qkv`."""
    if not (_ours(qkv, grad) and _takes(heads) and _flat_fp32(query_gain_grad, key_gain_grad)):
        return plain.qk_norm_backward_(grad, qkv, heads, query_gain_grad, key_gain_grad, unit)
    _native.kernel_qk_norm_backward(
        qkv.dtype is torch.bfloat16,
        grad.data_ptr(),
        qkv.data_ptr(),
        _tables(heads),
        (query_gain_grad.data_ptr(), key_gain_grad.data_ptr()),
        heads.eps,
        _sizes(qkv, heads),
        unit or max(1, len(qkv)),
        torch.get_num_threads(),
    )
    return None


def _takes(heads: Heads) -> bool:
    in_fp32 = _flat_fp32(heads.query_gain, heads.key_gain, heads.cos, heads.sin)
    return in_fp32 and heads.positions.dtype is torch.int64 and _flat(heads.positions)


def _tables(heads: Heads) -> tuple[int, ...]:
    tensors = (heads.query_gain, heads.key_gain, heads.cos, heads.sin, heads.positions)
    return tuple(tensor.data_ptr() for tensor in tensors)


def _sizes(qkv: Tensor, heads: Heads) -> tuple[int, ...]:
    return (*qkv.shape, len(heads.cos), len(heads.query_gain), heads.heads, heads.kv_heads)


def gate(gate_up: Tensor) -> Tensor:
    """SwiGLU: silu of the first half of the columns times the second half."""
    if not _ours(gate_up):
        return plain.gate(gate_up)
    rows, width = gate_up.shape
    out = torch.empty((rows, width // 2), dtype=gate_up.dtype)
    _native.kernel_gate(
        gate_up.dtype is torch.bfloat16,
        gate_up.data_ptr(),
        out.data_ptr(),
        rows,
        width // 2,
        torch.get_num_threads(),
    )
    return out


def gate_backward_(gate_up: Tensor, d_act: Tensor) -> Tensor:
    """Overwrites `gate_up` with its gradient and returns what `gate` had returned."""
    if not _ours(gate_up, d_act):
        return plain.gate_backward_(gate_up, d_act)
    rows, half = d_act.shape
    act = torch.empty_like(d_act)
    _native.kernel_gate_backward(
        gate_up.dtype is torch.bfloat16,
        gate_up.data_ptr(),
        d_act.data_ptr(),
        act.data_ptr(),
        rows,
        half,
        torch.get_num_threads(),
    )
    return act


def cross_entropy_(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
    """Each token's loss, fp32 (tokens,); `logits` (tokens, >= vocab) become `scale` times their gradient, in place."""
    if not (_ours(logits) and labels.dtype is torch.int64 and _flat(labels)):
        return plain.cross_entropy_(logits, labels, vocab, scale)
    rows, width = logits.shape
    losses = torch.empty(rows, dtype=torch.float32)
    _native.kernel_cross_entropy(
        logits.dtype is torch.bfloat16,
        logits.data_ptr(),
        labels.data_ptr(),
        losses.data_ptr(),
        rows,
        width,
        vocab,
        scale,
        torch.get_num_threads(),
    )
    return losses


def accumulate_(grad: Tensor, dy: Tensor, x: Tensor, unit: int = 0) -> None:
    """grad += dy^T @ x: the gradient of a matrix from what came back and what went in."""
    if grad.dtype == dy.dtype:
        return plain.accumulate_(grad, dy, x, unit)
    at_once = unit or max(1, len(x))
    product = grad.new_empty(grad.shape, dtype=dy.dtype)
    for slope, part in zip(dy.split(at_once), x.split(at_once)):
        add_(grad, torch.mm(slope.t(), part, out=product))
    return None


def add_(grad: Tensor, part: Tensor) -> None:
    """Adds a part's gradient, fp32 or bf16, to the fp32 sum."""
    if not (_ours(part) and _flat_fp32(grad)):
        grad += part
        return
    _native.kernel_accumulate(
        part.dtype is torch.bfloat16, grad.data_ptr(), part.data_ptr(), grad.numel(), torch.get_num_threads()
    )


def grad_norm(grad: Tensor) -> Tensor:
    """The root of the sum of the squares, fp32."""
    if not _ours(grad):
        return plain.grad_norm(grad)
    total = _native.kernel_squares(grad.dtype is torch.bfloat16, grad.data_ptr(), grad.numel(), torch.get_num_threads())
    return torch.tensor(math.sqrt(total))
