"""Numbers of the recipe that engines written in Python share (docs/design/recipe.md).

The orthogonal factor of a matrix is approximated by four steps x <- a x + (b A + c A^2) x with A = x x^T, each with its
own coefficients: the odd polynomial of degree 5 whose values are closest to 1 on the interval that the previous step
left ("Polar Express", arXiv 2505.16932; tests/test_polar.py derives them). Singular values from 0.005 to 1 end between
0.91 and 1.09, smaller ones below. Other numbers of steps are in docs/design/recipe.md.
"""

from __future__ import annotations

import math

INITIAL_DEVIATION = 0.02

MOMENTUM = 0.95
ROW_DECAY = 0.95
UPDATE_SIZE = 0.2
TINY = 1e-12

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


def initial_qk_gain(head_width: int) -> float:
    """How sharp attention can be at first: 1 for heads of 32 or less, 1.25 for 64, 1.5 for 128. Larger models gain from
    more (docs/design/recipe.md)."""
    return 1.0 + max(0.0, math.log2(head_width / 32)) / 4


def initial_deviation(name: str, layers: int) -> float:
    """Of a matrix: scaled down with depth for what writes into the residual stream."""
    writes = name.endswith((".out", ".down"))
    return INITIAL_DEVIATION / math.sqrt(2 * layers) if writes else INITIAL_DEVIATION
