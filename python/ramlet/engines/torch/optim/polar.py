"""The orthogonal factor of a matrix, approximately: U V^T of U S V^T, by matrix products alone.

Four steps x <- a x + (b A + c A^2) x with A = x x^T, each with its own coefficients: the odd polynomial of degree 5
whose values are closest to 1 on the interval that the previous step left ("Polar Express", arXiv 2505.16932;
tests/test_polar.py derives them). Singular values from 0.005 to 1 end between 0.91 and 1.09, smaller ones below. Other
numbers of steps are in docs/design/recipe.md.

`orthogonalize` is for GPUs. On a CPU the whole update is native (rust/kernels/muon.rs), with the same coefficients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ramlet.engines.torch.optim import plain_update

Gram = Callable[..., Tensor]
"""Of plain_update or triton_update."""
SMALLEST = 5e-3
FITTED = (
    (8.152673, -23.215832, 17.022398),
    (3.90967, -2.900342, 0.554001),
    (3.189716, -2.391872, 0.499119),
    (2.199956, -1.576993, 0.40893),
)
SAFETY = 1.01
"""Every step but the last takes its argument divided by this. Rounding lifts the largest singular values above the
interval of the next step, where its polynomial is steep: in bf16, even with the margin below, matrices of low rank came
out up to five times too large, and without it 100,000 times."""
COEFFICIENTS = (*((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in FITTED[:-1]), FITTED[-1])
MARGIN = 1.02
"""The norm is overestimated by this much, since rounding may lift a singular value above 1."""


def orthogonalize(x: Tensor, gram: Gram = plain_update.gram) -> Tensor:
    """Of (count, rows, columns), rows <= columns, each with a Frobenius norm of at most 1; overwrites `x`."""
    other = torch.empty_like(x)
    for a, b, c in COEFFICIENTS:
        torch.bmm(gram(gram(x), c, b, a), x, out=other)
        x, other = other, x
    return x
