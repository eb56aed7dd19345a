"""Muon's native update against the formula in float64, for all sizes; its bits for any number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracles_training_memory import highest
from ramlet.engines.constants import COEFFICIENTS, MARGIN, SMALLEST
from ramlet.engines.plan import Choice
from ramlet.engines.torch.optim import muon, native
from ramlet.model.shape import Shape

RATE = 0.01
Numbers = npt.NDArray[np.float64]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def orthogonal(x: Numbers) -> Numbers:
    x = x / (np.linalg.norm(x) * MARGIN + muon.TINY)
    for a, b, c in COEFFICIENTS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def updated(directions: Sequence[Numbers], threads: int = 1) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Weights that were 1, orthogonal factor and row squares of each matrix, all in one call."""
    torch.set_num_threads(threads)
    given = [torch.tensor(direction, dtype=torch.float32)[None] for direction in directions]
    batches = [(torch.ones_like(each), each, torch.zeros(1, each.shape[1], 1)) for each in given]
    native.muon_update(batches, COEFFICIENTS, (MARGIN, muon.ROW_DECAY, muon.TINY, RATE * muon.UPDATE_SIZE))
    return [(weights[0], direction[0], squares[0]) for weights, direction, squares in batches]


def check(direction: Numbers) -> None:
    ((weights, found, row_squares),) = updated([direction])
    wide = direction.astype(np.float32).astype(np.float64)
    expected = orthogonal(wide) if len(wide) <= wide.shape[1] else orthogonal(wide.T).T
    # As matrices: the longest vector that the difference makes of one of length 1.
    assert np.linalg.norm(found.numpy() - expected, 2) < 5e-4
    means = np.square(found.double().numpy()).mean(1, keepdims=True)
    known = (1 - muon.ROW_DECAY) * means
    np.testing.assert_allclose(row_squares, known, rtol=1e-4, atol=1e-12)
    even = found.double().numpy() / np.sqrt(known + muon.TINY)
    even *= np.linalg.norm(found.double()) / max(np.linalg.norm(even), 1e-30) * math.sqrt(max(direction.shape))
    np.testing.assert_allclose(1 - weights.double(), RATE * muon.UPDATE_SIZE * even, rtol=1e-3, atol=1e-6)


SIZES = [(1, 1), (1, 500), (500, 1), (16, 16), (17, 300), (300, 17), (64, 513), (513, 64), (130, 131), (160, 160)]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_all_sizes(rows: int, columns: int) -> None:
    check(np.random.default_rng(1).standard_normal((rows, columns)))


@settings(max_examples=60)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    rank=st.integers(1, 70),
    magnitude=st.sampled_from([1e-8, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_matrix(rows: int, columns: int, rank: int, magnitude: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    strengths = random.choice([1e-6, 0.1, 1.0], rank)
    check(magnitude * (random.standard_normal((rows, rank)) * strengths) @ random.standard_normal((rank, columns)))


def test_singular_values_end_near_one() -> None:
    random = np.random.default_rng(2)
    u, _, vt = np.linalg.svd(random.standard_normal((48, 130)), full_matrices=False)
    values = np.logspace(-2, 0, 48)
    ((_, found, _),) = updated([u * values @ vt])
    across = u.T @ found.numpy() @ vt.T
    assert np.abs(across - np.diag(across.diagonal())).max() < 1e-4
    assert across.diagonal().max() < 1.1
    assert across.diagonal()[values / np.linalg.norm(values) > 2 * SMALLEST].min() > 0.9


def test_nothing_is_nothing_and_nan_is_nan() -> None:
    random = np.random.default_rng(3)
    broken = random.standard_normal((33, 20))
    broken[7, 3] = math.nan
    infinite = random.standard_normal((20, 33))
    infinite[7, 3] = -math.inf
    good = random.standard_normal((33, 20))
    zero, nan, inf, alone = updated([np.zeros((33, 20)), broken, infinite, good], threads=2)
    assert torch.equal(zero[0], torch.ones(33, 20))
    assert not zero[1].any()
    assert not zero[2].any()
    assert all(each.isnan().all() for each in (*nan, *inf))
    assert all(map(torch.equal, alone, updated([good])[0]))


@pytest.mark.parametrize(
    "sizes",
    [
        [(130, 40), (40, 130), (64, 64), (1, 300), (17, 19), (130, 40), (48, 48)],
        [(160, 400)],  # fewer matrices than threads: all threads work on one
        [(400, 130), (130, 130)],
    ],
    ids=["many", "one", "few"],
)
def test_threads_change_no_bit(sizes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(4)
    directions = [random.standard_normal(size) for size in sizes]
    wanted = [updated([direction])[0] for direction in directions]
    for threads in (1, 2, 3, 8):
        for one, other in zip(wanted, updated(directions, threads), strict=True):
            assert all(map(torch.equal, one, other)), threads


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
@pytest.mark.parametrize("layers", [1, 6])
def test_scratch_is_predicted_and_bounded(threads: int, layers: int) -> None:
    shape = Shape(131, 48, layers, 48, 4, kv_heads=2, feed_forward=200)
    sizes = [(stack.rows, stack.columns) for stack in muon.stacks(shape)] * layers
    torch.set_num_threads(threads)
    batches = [(torch.zeros(1, *size), torch.zeros(1, *size), torch.zeros(1, size[0], 1)) for size in sizes]
    factors = (MARGIN, muon.ROW_DECAY, muon.TINY, RATE)
    taken = highest(lambda: native.muon_update(batches, COEFFICIENTS, factors))
    assert taken == muon.scratch_bytes(shape, Choice(1, 1, compute="bf16"), "cpu", threads)
    large = Shape(50_000, 1024, 48, 2048, 16, feed_forward=5632)
    square, direction = 2048 * 2048 * 4, 2048 * 5632 * 4
    assert muon.scratch_bytes(large, Choice(1, 1), "cpu", threads) < max(64 << 20, 4.2 * square + direction)
