"""Muon's step in plain torch, for any device: the functions of triton_update.py, and their reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def row_scales(update: Tensor, row_squares: Tensor, factor: Tensor, decay: float, tiny: float) -> Tensor:
    """The factor of each row of the updates, (count, rows): makes rows equally large, and the whole as large as it was,
    times the root of the longer side and `factor`.

    Moves the running mean squares of the rows, (count, rows, 1).
    """
    norms: Tensor = torch.linalg.vector_norm(update, dim=2, dtype=torch.float32)
    squares = norms.square() / update.shape[2]
    running = row_squares[:, :, 0].lerp_(squares, 1 - decay)
    scale = (running + tiny).rsqrt()
    before, after = squares.sum(1, keepdim=True), (squares * scale.square()).sum(1, keepdim=True)
    scale *= ((before + tiny) / (after + tiny)).sqrt()
    return scale.mul_(factor * math.sqrt(max(update.shape[1:])))


def subtract(weights: Tensor, products: Tensor, update: Tensor, scales: Tensor, keep: Tensor) -> None:
    """`weights = keep * weights - scales * update`, and their copy for matrix products, if that is another tensor.

    (count, rows, columns) each, the update may be transposed; scales are (count, rows).
    """
    weights.mul_(keep).sub_(update * scales[:, :, None])
    if products.data_ptr() != weights.data_ptr():
        products.copy_(weights)


def gram(x: Tensor, alpha: float = 1.0, beta: float = 0.0, diagonal: float = 0.0) -> Tensor:
    """`alpha x x^T + beta x + diagonal I` for (count, rows, columns), where `x` is symmetric unless `beta` is 0."""
    found = torch.baddbmm(x, x, x, beta=beta, alpha=alpha) if beta else torch.bmm(x, x.mT).mul_(alpha)
    if diagonal:
        found.diagonal(dim1=1, dim2=2).add_(diagonal)
    return found
