"""Matrix products with 8-bit inputs, on GPUs that multiply them at twice the speed of bf16 (Ada, Hopper and later).

Only products of the forward pass whose input is normalized have them: queries, keys and values, gate and up, and the
logits. Their range is known in advance, so the scales are constants: nothing is measured, and nothing has to be saved
or resumed. A number has 3 bits of mantissa (e4m3) between 2^-6 and 448. The backward pass, evaluation and generation
use bf16.

    x = kernels.norm_fp8(x, gain, eps, INPUT_SCALE)
    product(x, kernels.to_fp8(weights, WEIGHT_SCALE))           # bf16
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

INPUT_SCALE = 16.0
"""Of a normalized token times its gains: 28 and more, which becomes 28, would be most of its norm in one column."""
WEIGHT_SCALE = 64.0
"""Numbers from 2^-12 to 7 keep their precision; larger ones become 7."""
MULTIPLE = 16
"""Of rows and columns of a matrix: the instructions of a GPU need it."""


def fits(rows: int, columns: int) -> bool:
    return rows % MULTIPLE == 0 and columns % MULTIPLE == 0


def is_fast(capability: tuple[int, int]) -> bool:
    """Whether a GPU has these instructions."""
    return capability >= (8, 9)


def product(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ weight^T in bf16; both are fp8, (rows, columns), and were multiplied by their scales."""
    if x.device.type == "cuda":
        scales = (_constant(1 / INPUT_SCALE, x.device), _constant(1 / WEIGHT_SCALE, x.device))
        return torch._scaled_mm(x, weight.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True, out=out)
    found = (x.float() @ weight.float().t() / (INPUT_SCALE * WEIGHT_SCALE)).to(torch.bfloat16)
    return found if out is None else out.copy_(found)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)
