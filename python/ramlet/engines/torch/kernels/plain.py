"""The kernels in plain torch: the slow reference for any device, which the fast ones are tested against.

All take contiguous 2-D activations (tokens, features) in fp32, bf16 or fp16, compute in fp32 and round once. A name
with a trailing `_` works in place on its first argument. Sums of gradients over tokens are added `unit` tokens at a
time; 0 means all at once (order.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ramlet.engines import hashing

PIECE = 1 << 20
IGNORE = -100
"""The label of a token without a loss."""


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm: x over its root mean square, times the gain."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gain.float()).to(x.dtype)


FP8 = torch.float8_e4m3fn
HIGHEST_FP8 = 448.0


def to_fp8(x: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """`x` times the scale."""
    if out is None:
        out = torch.empty(x.shape, dtype=FP8, device=x.device)
    return out.copy_((x.float() * scale).clamp(-HIGHEST_FP8, HIGHEST_FP8))


def norm_fp8(x: Tensor, gain: Tensor, eps: float, scale: float) -> Tensor:
    """RMSNorm in fp8, times the scale."""
    return to_fp8(norm(x.float(), gain, eps), scale)


def norm_backward(
    dy: Tensor, x: Tensor, gain: Tensor, eps: float, gain_grad: Tensor, unit: int = 0, added: Tensor | None = None
) -> Tensor:
    """dx, plus `added`; the gain's gradient is added to `gain_grad`."""
    wide, grad = x.float(), dy.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * scale
    for part in (grad * normed).split(unit or max(1, len(x))):
        gain_grad += part.sum(0).to(gain_grad.dtype)
    grad = grad * gain.float()
    dx = (scale * (grad - normed * (grad * normed).mean(-1, keepdim=True))).to(x.dtype)
    return dx if added is None else dx.add_(added)


def rotate_(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, heads: int, inverse: bool = False) -> None:
    """Rotates the first `heads` heads of every row by the angles of its position, in place; the rest is unchanged.

    `cos` and `sin` are fp32 (context, head width / 2), `positions` int64 or int32 (tokens,). Dimension i of a head is
    paired with i + head width / 2, as in Llama's published weights.
    """
    half = cos.shape[1]
    rotated = qkv[:, : heads * 2 * half].view(qkv.shape[0], heads, 2, half)
    first, second = rotated[:, :, 0].float(), rotated[:, :, 1].float()
    c, s = cos[positions][:, None], sin[positions][:, None]
    if inverse:
        s = -s
    new_first, new_second = first * c - second * s, second * c + first * s  # both before either is written
    rotated[:, :, 0], rotated[:, :, 1] = new_first.to(qkv.dtype), new_second.to(qkv.dtype)


class Heads(NamedTuple):
    """What QK-norm needs of a layer: gains (head width,) in fp32, and what rotary positions need (`rotate_`)."""

    query_gain: Tensor
    key_gain: Tensor
    eps: float
    cos: Tensor
    sin: Tensor
    positions: Tensor
    heads: int
    kv_heads: int

    @property
    def width(self) -> int:
        return len(self.query_gain)

    @property
    def columns(self) -> int:
        """Those of queries and keys, the first ones of the product."""
        return (self.heads + self.kv_heads) * self.width


def qk_norm(qkv: Tensor, heads: Heads) -> Tensor:
    """Queries and keys, (tokens, `heads.columns`): each head RMS-normalized, times its gain, then rotated."""
    normed, _ = _normed_heads(qkv, heads)
    rotated = (normed * _gains(heads)).view(len(qkv), heads.columns)
    rotate_(rotated, heads.cos, heads.sin, heads.positions, heads.heads + heads.kv_heads)
    return rotated.to(qkv.dtype)


def qk_norm_backward(
    grads: Sequence[Tensor], qkv: Tensor, heads: Heads, query_gain_grad: Tensor, key_gain_grad: Tensor, unit: int = 0
) -> Tensor:
    """The gradient of `qkv` from those of `qk_norm`'s queries and keys and of the values.

    The gains' gradients are added to theirs.
    """
    grad = torch.cat(list(grads), dim=1)
    count = heads.heads + heads.kv_heads
    normed, scale = _normed_heads(qkv, heads)
    wide = grad[:, : heads.columns].float().contiguous()
    rotate_(wide, heads.cos, heads.sin, heads.positions, count, inverse=True)
    wide = wide.view(len(qkv), count, heads.width)
    for part in (wide * normed).split(unit or max(1, len(qkv))):
        query_gain_grad += part[:, : heads.heads].sum((0, 1)).to(query_gain_grad.dtype)
        key_gain_grad += part[:, heads.heads :].sum((0, 1)).to(key_gain_grad.dtype)
    wide = wide * _gains(heads)
    d_x = scale * (wide - normed * (wide * normed).mean(-1, keepdim=True))
    grad[:, : heads.columns] = d_x.view(len(qkv), -1).to(grad.dtype)
    return grad


def _normed_heads(qkv: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """Query and key heads, (tokens, heads, head width) in fp32, and what they were multiplied by."""
    wide = qkv[:, : heads.columns].float().view(len(qkv), -1, heads.width)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + heads.eps)
    return wide * scale, scale


def _gains(heads: Heads) -> Tensor:
    """(query and key heads, head width)."""
    return torch.cat([heads.query_gain.expand(heads.heads, -1), heads.key_gain.expand(heads.kv_heads, -1)])


def gate(gate_up: Tensor) -> Tensor:
    """SwiGLU: silu of the first half of the columns times the second half."""
    first, second = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(first) * second).to(gate_up.dtype)


def gate_backward_(gate_up: Tensor, d_act: Tensor) -> Tensor:
    """Overwrites `gate_up` with its gradient and returns what `gate` returned."""
    first, second = gate_up.float().chunk(2, dim=-1)
    sigmoid = torch.sigmoid(first)
    silu, grad = first * sigmoid, d_act.float()
    act = (silu * second).to(gate_up.dtype)
    d_first = grad * second * sigmoid * (1 + first * (1 - sigmoid))
    gate_up.copy_(torch.cat([d_first, grad * silu], dim=-1))
    return act


class Dropout(NamedTuple):
    """A mask over activations: by a hash of the sequence's key, the place, the token's position and the column."""

    keys: Tensor
    """int64 (sequences,), the lower 32 bits of each are used. All sequences have the same number of tokens."""
    rate: float
    place: int = 0
    """Where in the model: each place has its own mask."""

    @property
    def threshold(self) -> int:
        """Elements whose hash is below it are dropped."""
        return min(round(self.rate * 2**32), 2**32 - 1)

    @property
    def scale(self) -> float:
        """What the others are multiplied by, so that the expected value stays the same."""
        return 1 / (1 - self.rate)


def dropout(x: Tensor, mask: Dropout) -> Tensor:
    """`x` with the mask applied. The backward pass is the same."""
    return (x.float() * _factors(x, mask)).to(x.dtype)


def dropout_add_(branch: Tensor, x: Tensor, mask: Dropout) -> None:
    """In place: the branch with the mask applied, plus `x`."""
    branch.copy_(x.float() + branch.float() * _factors(branch, mask))


def _factors(x: Tensor, mask: Dropout) -> Tensor:
    tokens, width = x.shape
    positions = torch.arange(tokens // max(1, len(mask.keys)), device=x.device)
    sequences = hashing.scatter(mask.keys + mask.place)
    keys = hashing.scatter(sequences[:, None] + positions).view(-1, 1)
    hashes = hashing.scatter(keys + torch.arange(width, device=x.device))
    return torch.where(hashes < mask.threshold, 0.0, mask.scale)


def cross_entropy_(logits: Tensor, labels: Tensor, vocab: int, scale: float) -> Tensor:
    """The loss of each token, fp32 (tokens,); `logits` (tokens, >= vocab) become `scale` times their gradient.

    Columns from `vocab` on are padding, ignored and with gradient 0. A label of -100 has loss 0 and gradient 0.
    """
    wide = logits[:, :vocab].float()
    known = labels != IGNORE
    target = labels.clamp_min(0)[:, None]
    log_sum = torch.logsumexp(wide, -1, keepdim=True)
    losses = torch.where(known, (log_sum - wide.gather(1, target))[:, 0], 0.0)
    grad = torch.exp(wide - log_sum)
    grad.scatter_add_(1, target, grad.new_full(target.shape, -1.0))
    grad *= known[:, None] * scale
    logits[:, :vocab] = grad.to(logits.dtype)
    logits[:, vocab:] = 0
    return losses


def accumulate_(grad: Tensor, dy: Tensor, x: Tensor, unit: int = 0) -> None:
    """grad += dy^T @ x: the gradient of a matrix from those of its output and its input."""
    at_once = unit or max(1, len(x))
    for dy_part, x_part in zip(dy.split(at_once), x.split(at_once)):
        if grad.dtype == dy.dtype:
            grad.addmm_(dy_part.t(), x_part)
        else:
            grad.add_(dy_part.t() @ x_part)


def grad_norm(grad: Tensor) -> Tensor:
    """The L2 norm, fp32."""
    if grad.dtype == torch.float32:
        return torch.linalg.vector_norm(grad)  # type: ignore[no-any-return]
    # In pieces: otherwise torch would make an fp32 copy of the whole tensor.
    pieces = [torch.linalg.vector_norm(piece, dtype=torch.float32) for piece in grad.split(PIECE)]
    return torch.linalg.vector_norm(torch.stack(pieces))  # type: ignore[no-any-return]
