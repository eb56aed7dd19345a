"""Muon under several ranks: each orthogonalizes its share, and all have the bits of one that does everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from oracles_training import ranks
from ramlet.engines.plan import Choice
from ramlet.engines.torch.optim.shares import shares
from ramlet.engines.torch.ranks import TorchRanks, joined
from ramlet.engines.torch.sizes import flat_elements, hidden_start, stacks
from ramlet.engines.torch.step import Trainee
from ramlet.model.shape import Shape
from ramlet.training.settings import RunSettings

SHAPE = Shape(131, 48, 3, 32, 4, kv_heads=2, feed_forward=80, qk_norm=True)
SHAPES = {
    "small": SHAPE,
    "one layer": Shape(64, 32, 1, 24, 2, feed_forward=56),
    "124M": Shape(50_304, 1024, 12, 768, 12, feed_forward=2048, qk_norm=True),
}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 50])
@pytest.mark.parametrize("name", SHAPES)
def test_shares_are_everything_once(name: str, world: int) -> None:
    shape = SHAPES[name]
    found = shares(shape, world)
    assert len(found) == world
    hidden = flat_elements(shape)[0] - hidden_start(shape)
    assert (found[0].start, found[-1].end) == (0, hidden)
    seen = []
    for share, following in zip(found, [*found[1:], None]):
        assert following is None or share.end == following.start
        for number, (stack, layers) in enumerate(zip(stacks(shape), share.layers, strict=True)):
            for layer in layers:
                start = stack.start + layer * stack.stride
                assert share.start <= start < start + stack.rows * stack.columns <= share.end
                seen.append((number, layer))
    assert sorted(seen) == [(number, layer) for number in range(7) for layer in range(shape.layers)]


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_shares_are_about_equal(world: int) -> None:
    """None has more than the mean by more than the largest matrix."""
    shape = SHAPES["124M"]

    def cost(rows: int, columns: int) -> int:
        return min(rows, columns) ** 2 * (2 * max(rows, columns) + min(rows, columns))

    costs = [cost(stack.rows, stack.columns) for stack in stacks(shape)]
    given = [sum(one * len(layers) for one, layers in zip(costs, share.layers)) for share in shares(shape, world)]
    assert max(given) <= sum(given) / world + max(costs)


def learned(choice: Choice, ranks: TorchRanks, divided: bool) -> tuple[dict[str, torch.Tensor], int]:
    """The weights and states after three steps, and how many matrices were orthogonalized here."""
    trainee = Trainee(SHAPE, choice, RunSettings(), device="cpu", ranks=ranks)
    if not divided:
        trainee.optimizer.divide(TorchRanks())
    done = 0
    views = trainee.optimizer._views

    def counted(*given: Any) -> Iterator[Any]:
        nonlocal done
        for stack in views(*given):
            done += len(stack[0])
            yield stack

    trainee.reset(3)
    trainee.optimizer._views = counted
    for step in range(3):
        draw = torch.Generator().manual_seed(10 * step + ranks.rank)
        ids = torch.randint(0, SHAPE.vocab_size, (2, 33), generator=draw)
        trainee.learn({"input_ids": ids[:, :-1], "targets": ids[:, 1:]}, 1 / 64)
        trainee.update(1e-2, 1.0)
    states = {name: value.clone() for name, value in trainee.optimizer_tensors().items()}
    weights = {weight.name: weight.master.clone() for weight in trainee.model.weights}
    compute = {f"{weight.name} for products": weight.compute.clone() for weight in trainee.model.weights}
    return {**weights, **compute, **states}, done


def same_on_ranks(choice: Choice) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as among:
        divided, some = learned(choice, among, divided=True)
        alone, all_of_them = learned(choice, among, divided=False)
        assert all_of_them == 3 * 7 * SHAPE.layers
        assert 0 < some < all_of_them
        counted = torch.tensor(some)
        among.sum(counted)
        assert counted == all_of_them, "each matrix on one rank"
        assert [name for name in alone if not torch.equal(divided[name], alone[name])] == []
        # And all ranks have the same.
        for value in divided.values():
            first = value.clone()
            torch.distributed.broadcast(first.flatten().contiguous().view(torch.uint8), src=0)
            assert torch.equal(first, value)


@pytest.mark.parametrize(
    ("world", "optimizer", "weights", "compute"),
    [(2, "muon", "fp32", "fp32"), (3, "muon", "fp32", "bf16"), (3, "muon8bit", "bf16", "bf16")],
)
def test_the_bits_of_one_that_does_everything(world: int, optimizer: str, weights: str, compute: str) -> None:
    choice = Choice(2, 64, optimizer=optimizer, weights=weights, compute=compute)
    assert ranks(world, same_on_ranks, choice) == [0] * world
