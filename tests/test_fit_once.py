"""Iterators as loaders of `ramlet.fit`: each batch is trained on once, over all calls with the same iterator."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ramlet
from conftest import AMPLE
from test_fit import StopAt, assert_same, fit

STEPS = 6


def found() -> list[Tensor]:
    """Batches whose first number is their own."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 3, generator=generator) for _ in range(20)]
    for number, batch in enumerate(batches):
        batch[0, 0] = number
    return batches


def generated() -> Iterator[Tensor]:
    yield from found()


KINDS: dict[str, Callable[[], Iterator[Any]]] = {
    "generator": generated,
    "of a list": lambda: iter(found()),
    "map": lambda: map(torch.clone, found()),
}


def linear() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(3, 2)


class Watched:
    """A loss that knows the batches of the steps; those of the trial come before them."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        self.seen.append(int(batch[0, 0]))
        mean: Tensor = module(batch).square().mean()
        return mean


def trained(module: nn.Module, batches: Iterator[Any], out: Path, **given: Any) -> list[int]:
    """The batches of the steps."""
    loss, stop = Watched(), given.pop("stop", None)
    given = {"max_steps": STEPS, "micro_batch": 4, **given}
    if stop is None:
        result = fit(module, batches, out, loss=loss, **given)
        return loss.seen[-result.steps :]
    with pytest.raises(ramlet.Interrupted):
        fit(module, batches, out, loss=loss, listener=StopAt(stop), **given)
    return loss.seen[-stop:]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_an_iterator_continues_the_run(kind: str, tmp_path: Path) -> None:
    """As in a notebook, where the cell of a run that was stopped runs again."""
    whole, parts = linear(), linear()
    assert trained(whole, KINDS[kind](), tmp_path / "whole") == list(range(STEPS))
    batches = KINDS[kind]()
    assert trained(linear(), batches, tmp_path / "parts", stop=4) == [0, 1, 2, 3]
    assert trained(parts, batches, tmp_path / "parts")[-2:] == [4, 5]
    assert_same(parts, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_iterator_continues_it_too(kind: str, tmp_path: Path) -> None:
    whole, parts = linear(), linear()
    trained(whole, KINDS[kind](), tmp_path / "whole")
    trained(linear(), KINDS[kind](), tmp_path / "parts", stop=4)
    assert trained(parts, KINDS[kind](), tmp_path / "parts")[-2:] == [4, 5]
    assert_same(parts, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_only_looked_at_is_trained_on(kind: str, tmp_path: Path) -> None:
    """By a plan, and by a run that was refused."""
    batches = KINDS[kind]()
    ramlet.plan_module(linear(), batches, Watched(), memory=AMPLE, threads=1)
    with pytest.raises(ramlet.BudgetError):
        fit(linear(), batches, tmp_path / "run", loss=Watched(), memory="20MB")
    assert trained(linear(), batches, tmp_path / "run") == list(range(STEPS))


def test_the_next_run_has_the_next_batches(tmp_path: Path) -> None:
    batches, second = generated(), linear()
    assert trained(linear(), batches, tmp_path / "one") == list(range(STEPS))
    assert trained(linear(), batches, tmp_path / "two", stop=2) == [6, 7]
    trained(second, batches, tmp_path / "two")
    again = linear()
    trained(again, iter(found()[STEPS:]), tmp_path / "three")
    assert_same(second, again)


def test_an_iterator_that_is_ahead_of_the_run(tmp_path: Path) -> None:
    batches = generated()
    trained(linear(), batches, tmp_path / "one", stop=2)
    trained(linear(), batches, tmp_path / "two")
    with pytest.raises(ramlet.SettingsError, match="8 batches were read from this iterator, and the run continues aft"):
        trained(linear(), batches, tmp_path / "one")
    assert trained(linear(), generated(), tmp_path / "one")[-4:] == [2, 3, 4, 5]


def test_an_iterator_at_its_end(tmp_path: Path) -> None:
    batches = iter(found()[:STEPS])
    trained(linear(), batches, tmp_path / "one")
    with pytest.raises(ramlet.SettingsError, match="the loader ended after 6 batches, and the run is longer"):
        trained(linear(), batches, tmp_path / "two")


def test_nobody_keeps_an_iterator(tmp_path: Path) -> None:
    batches = generated()
    known = weakref.ref(batches)
    trained(linear(), batches, tmp_path / "run", stop=2)
    del batches
    gc.collect()
    assert known() is None
