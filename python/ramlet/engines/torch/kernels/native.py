"""The kernels in Rust, for fp32 and bf16 on the CPU: few passes over memory, bit-identical for any number of threads.

They do what `plain` does, and call it for other devices and dtypes and for strided tensors. Two things differ. A label
or position out of range is an IndexError before anything is written. An ignored row has gradient 0 even if it contains
NaN.

They use torch's threads (`torch.set_num_threads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ramlet import _native
from ramlet.engines.torch.kernels import plain
from ramlet.engines.torch.kernels.plain import Dropout, Heads
from ramlet.engines.torch.kernels.plain import norm_fp8 as norm_fp8  # only tests use it on a CPU
from ramlet.engines.torch.kernels.plain import to_fp8 as to_fp8


# Loops, not `all(...)`, which takes longer than the smallest kernels.
def _supported(first: Tensor, *like: Tensor) -> bool:
    """Whether all have one dtype that the native kernels know, are on the CPU, and contiguous."""
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


def _run(kernel: Callable[..., None], first: Tensor, *arguments: Tensor | float | tuple[float, ...]) -> None:
    """Calls a kernel with the addresses of tensors; `first` decides between fp32 and bf16."""
    given = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    kernel(first.dtype is torch.bfloat16, first.data_ptr(), *given, torch.get_num_threads())


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    if not (_supported(x) and _flat_fp32(gain)):
        return plain.norm(x, gain, eps)
    out = torch.empty_like(x)
    _run(_native.kernel_norm, x, gain, eps, out, *x.shape)
    return out


def norm_backward(
    dy: Tensor, x: Tensor, gain: Tensor, eps: float, gain_grad: Tensor, unit: int = 0, added: Tensor | None = None
) -> Tensor:
    if not (_supported(x, dy) and _flat_fp32(gain, gain_grad)):
        return plain.norm_backward(dy, x, gain, eps, gain_grad, unit, added)
    rows, width = x.shape
    dx = torch.empty_like(x)
    _run(_native.kernel_norm_backward, dy, x, gain, eps, gain_grad, dx, rows, width, unit or max(1, rows))
    return dx if added is None else dx.add_(added)


def rotate_(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, inverse: bool = False) -> None:
    wide = positions.dtype is torch.int64
    if not (_supported(qkv) and _flat_fp32(cos, sin) and _flat(positions) and (wide or positions.dtype is torch.int32)):
        plain.rotate_(qkv, cos, sin, positions, heads, inverse)
        return
    _run(_native.kernel_rotate, qkv, cos, sin, positions, wide, *qkv.shape, *cos.shape, heads, inverse)


def qk_norm(qkv: Tensor, heads: Heads) -> Tensor:
    """Queries and keys, (tokens, `heads.columns`): each head RMS-normalized, times its gain, then rotated."""
    if not (_supported(qkv) and _takes(heads)):
        return plain.qk_norm(qkv, heads)
    out = torch.empty((len(qkv), heads.columns), dtype=qkv.dtype)
    _run(_native.kernel_qk_norm, qkv, out, _addresses(*heads[:2], *heads[3:6]), heads.eps, _sizes(qkv, heads))
    return out


def qk_norm_backward(
    grads: Sequence[Tensor], qkv: Tensor, heads: Heads, query_gain_grad: Tensor, key_gain_grad: Tensor, unit: int = 0
) -> Tensor:
    """The gradient of `qkv` from those of `qk_norm`'s queries and keys and of the values."""
    if not (_supported(qkv, grads[0]) and _takes(heads) and _flat_fp32(query_gain_grad, key_gain_grad)):
        return plain.qk_norm_backward(grads, qkv, heads, query_gain_grad, key_gain_grad, unit)
    grad = torch.cat(list(grads), dim=1)
    tables, gain_grads = _addresses(*heads[:2], *heads[3:6]), _addresses(query_gain_grad, key_gain_grad)
    unit = unit or max(1, len(qkv))
    _run(_native.kernel_qk_norm_backward, grad, qkv, tables, gain_grads, heads.eps, _sizes(qkv, heads), unit)
    return grad


def _takes(heads: Heads) -> bool:
    in_fp32 = _flat_fp32(heads.query_gain, heads.key_gain, heads.cos, heads.sin)
    return in_fp32 and heads.positions.dtype is torch.int64 and _flat(heads.positions)


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _sizes(qkv: Tensor, heads: Heads) -> tuple[int, ...]:
    return (*qkv.shape, len(heads.cos), len(heads.query_gain), heads.heads, heads.kv_heads)


def gate(gate_up: Tensor) -> Tensor:
    if not _supported(gate_up):
        return plain.gate(gate_up)
    rows, width = gate_up.shape
    out = torch.empty((rows, width // 2), dtype=gate_up.dtype)
    _run(_native.kernel_gate, gate_up, out, rows, width // 2)
    return out


def gate_backward_(gate_up: Tensor, d_act: Tensor) -> Tensor:
    if not _supported(gate_up, d_act):
        return plain.gate_backward_(gate_up, d_act)
    act = torch.empty_like(d_act)
    _run(_native.kernel_gate_backward, gate_up, d_act, act, *d_act.shape)
    return act


def dropout(x: Tensor, mask: Dropout) -> Tensor:
    if not (_supported(x) and _flat(mask.keys)):
        return plain.dropout(x, mask)
    out = torch.empty_like(x)
    _run(_native.kernel_dropout, out, x, False, *_drops(mask), *x.shape)
    return out


def dropout_add_(branch: Tensor, x: Tensor, mask: Dropout) -> None:
    if not (_supported(branch, x) and _flat(mask.keys)):
        plain.dropout_add_(branch, x, mask)
        return
    _run(_native.kernel_dropout, branch, x, True, *_drops(mask), *x.shape)


def _drops(mask: Dropout) -> tuple[tuple[int, int], tuple[int, int, float]]:
    return (mask.keys.data_ptr(), len(mask.keys)), (mask.place, mask.threshold, mask.scale)


def cross_entropy_(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
    if not (_supported(logits) and labels.dtype is torch.int64 and _flat(labels)):
        return plain.cross_entropy_(logits, labels, vocab, scale)
    losses = torch.empty(len(logits), dtype=torch.float32)
    _run(_native.kernel_cross_entropy, logits, labels, losses, *logits.shape, vocab, scale)
    return losses


def accumulate_(grad: Tensor, dy: Tensor, x: Tensor, unit: int = 0) -> None:
    if grad.dtype == dy.dtype:
        plain.accumulate_(grad, dy, x, unit)
        return
    at_once = unit or max(1, len(x))
    product = grad.new_empty(grad.shape, dtype=dy.dtype)
    for dy_part, x_part in zip(dy.split(at_once), x.split(at_once)):
        add_(grad, torch.mm(dy_part.t(), x_part, out=product))


def add_(grad: Tensor, part: Tensor) -> None:
    """Adds a gradient, fp32 or bf16, to the fp32 sum."""
    if not (_supported(part) and _flat_fp32(grad)):
        grad += part
        return
    _native.kernel_accumulate(
        part.dtype is torch.bfloat16, grad.data_ptr(), part.data_ptr(), grad.numel(), torch.get_num_threads()
    )


def grad_norm(grad: Tensor) -> Tensor:
    if not _supported(grad):
        return plain.grad_norm(grad)
    total = _native.kernel_squares(grad.dtype is torch.bfloat16, grad.data_ptr(), grad.numel(), torch.get_num_threads())
    return torch.tensor(math.sqrt(total))
