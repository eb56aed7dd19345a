"""The forward pass of one more token whose place in the cache is a tensor, as a CUDA graph replays it on a GPU.

Here without a graph: what differs from ordinary generation is how the cache is written and masked.
"""

from __future__ import annotations

import pytest
import torch

from oracles_model import SHAPES, model_of
from ramlet.engines.torch import gpt
from ramlet.engines.torch.cache import KVCache
from ramlet.engines.torch.layers import Rotary
from ramlet.model.shape import Shape

torch.set_num_threads(1)
ROWS, PROMPT, CAPACITY = 3, 5, 20


def filled(shape: Shape, ids: torch.Tensor) -> KVCache:
    """A cache with the first tokens of the ids; the rest of it is zero."""
    cache = KVCache(shape, rows=ROWS, capacity=CAPACITY, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        model_of(shape).hidden(ids[:, :PROMPT], cache=cache)
    cache.advance(PROMPT)
    return cache


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_same_states_as_without_a_cache(shape: Shape) -> None:
    model = model_of(shape)
    ids = torch.randint(0, shape.vocab_size, (ROWS, PROMPT + 6), generator=torch.Generator().manual_seed(3))
    cache = filled(shape, ids)
    place = torch.tensor([0])
    placed = cache.at(place)
    for number in range(PROMPT, ids.shape[1]):
        place.fill_(number)
        with torch.no_grad():
            last = model.hidden(
                ids[:, number : number + 1], positions=place.expand(ROWS, 1), mask=placed.mask(), cache=placed
            )
            whole = model.hidden(ids[:, : number + 1]).view(ROWS, number + 1, -1)[:, -1]
        torch.testing.assert_close(last, whole, rtol=1e-4, atol=1e-4)


def test_kernels_get_a_position_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded rows with one token each share one number; a kernel on a GPU would read what lies after it."""
    given: list[torch.Tensor] = []

    def spy(*tables_and_positions: torch.Tensor) -> Rotary:
        given.append(tables_and_positions[-1])
        return Rotary(*tables_and_positions)

    monkeypatch.setattr(gpt, "Rotary", spy)
    shape = SHAPES["small"]
    model_of(shape).logits(torch.ones((ROWS, 1), dtype=torch.int64), positions=torch.tensor([[0]]).expand(ROWS, 1))
    assert given[0].tolist() == [0] * ROWS
    assert given[0].stride() == (1,)


def test_the_mask_ends_at_the_new_token() -> None:
    shape = SHAPES["small"]
    cache = KVCache(shape, rows=1, capacity=8, device="cpu", dtype=torch.float32)
    assert cache.at(torch.tensor([2])).mask()[0, 0, 0].tolist() == [True] * 3 + [False] * 5
