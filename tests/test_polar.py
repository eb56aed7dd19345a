"""Muon's orthogonal factor: its coefficients derived again, its result against the singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramlet.engines.constants import FITTED, SMALLEST
from ramlet.engines.torch.optim.polar import orthogonalize

CUSHION = 0.024
"""A step fits its polynomial to values from this share of the largest on: below, closer fits would be too steep."""


def closest_to_one(low: float, high: float) -> np.ndarray:
    """The odd polynomial of degree 5 with the smallest largest distance from 1 on an interval, by Remez' algorithm."""
    grid = np.linspace(low, high, 20_001)
    points = low + (high - low) * np.array([0, 0.25, 0.7, 1])
    for _ in range(60):
        rows = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, _ = np.linalg.solve(rows, np.ones(4))
        off = grid * (a + grid**2 * (b + c * grid**2)) - 1
        turns = np.where(np.diff(np.sign(np.diff(off))))[0] + 1
        extremes = grid[np.unique([0, *turns, len(grid) - 1])]
        if len(extremes) != 4 or np.allclose(extremes, points, atol=1e-9):
            break
        points = extremes
    return np.array([a, b, c])


def test_the_coefficients() -> None:
    low, high = SMALLEST, 1.0
    for given in FITTED:
        fitted = closest_to_one(max(low, CUSHION * high), high)
        grid = np.linspace(low, high, 20_001)
        values = grid * (fitted[0] + grid**2 * (fitted[1] + fitted[2] * grid**2))
        if low < CUSHION * high:  # centered around 1 again
            fitted *= 2 / (values.min() + values.max())
        np.testing.assert_allclose(given, fitted, rtol=1e-4)
        values = grid * (given[0] + grid**2 * (given[1] + given[2] * grid**2))
        low, high = values.min(), values.max()
    assert 0.9 < low < high < 1.1


@pytest.mark.parametrize("sides", [(1, 1), (1, 7), (16, 16), (48, 130), (128, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_end_near_one(sides: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    u, _, vt = torch.linalg.svd(torch.randn(3, *sides, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(-2, 0, sides[0], dtype=torch.float64)
    matrices = u * (values / values.norm()) @ vt
    result = orthogonalize(matrices.to(dtype)).double()
    found = u.mT @ result @ vt.mT  # diagonal, if the singular vectors are the same
    diagonal = found.diagonal(dim1=1, dim2=2)
    kept = values / values.norm() >= 2 * SMALLEST
    slack = 0.02 if dtype is torch.float32 else 0.06
    assert (diagonal[:, kept] > 0.91 - slack).all()
    assert (diagonal < 1.09 + slack).all()
    assert (found - torch.diag_embed(diagonal)).abs().max() < (1e-4 if dtype is torch.float32 else 0.1)


def test_nothing_is_nothing() -> None:
    assert not orthogonalize(torch.zeros(2, 3, 5)).any()


@pytest.mark.parametrize("rank", [1, 2])
def test_rounding_does_not_lift_the_largest_singular_value(rank: int) -> None:
    torch.manual_seed(2)
    for rows, columns in ((1, 1), (1, 7), (5, 9), (16, 16), (31, 64)) * 20:
        x = torch.randn(1, rows, rank) @ torch.randn(1, rank, columns)
        result = orthogonalize((x / x.norm()).bfloat16()).double()
        assert torch.linalg.matrix_norm(result, 2).item() < 1.15
