"""The orthogonal factor of a matrix, approximately: U V^T of U S V^T, by matrix products alone.

The steps and their coefficients are in engines/constants.py.

`orthogonalize` is for GPUs. On a CPU the whole update is native (rust/kernels/muon.rs), with the same coefficients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ramlet.engines.constants import COEFFICIENTS
from ramlet.engines.torch.optim import plain_update

Gram = Callable[..., Tensor]
"""Of plain_update or triton_update."""


def orthogonalize(x: Tensor, gram: Gram = plain_update.gram) -> Tensor:
    """Of (count, rows, columns), rows <= columns, each with a Frobenius norm of at most 1; overwrites `x`."""
    other = torch.empty_like(x)
    for a, b, c in COEFFICIENTS:
        torch.bmm(gram(gram(x), c, b, a), x, out=other)
        x, other = other, x
    return x
