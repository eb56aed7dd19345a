"""What counts in a step of `ramlet.fit`: targets that are ignored, by which label, and the weights of classes.

A step is that of the whole batch, however it is divided.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ramlet
from conftest import AMPLE
from test_fit import CONSTANT, StopAt, assert_same, by_hand, fit, logged, pairs

IGNORED = -100


def linear() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1))


def batches() -> list[Any]:
    return [tuple(each) for each in pairs(shuffle=False)]


def with_blank_batches() -> list[Any]:
    """The third and the last of six have nothing but ignored targets."""
    return [(x, y if number not in (2, 5) else y.clone().fill_(IGNORED)) for number, (x, y) in enumerate(batches())]


def test_a_step_without_targets_changes_nothing(tmp_path: Path) -> None:
    """Not even by weight decay; and it is resumed behind it."""
    given: dict[str, Any] = {"loss": nn.NLLLoss(), "micro_batch": 3, "max_steps": 12, **CONSTANT}
    ours, theirs = linear(), linear()
    found = with_blank_batches()
    result = fit(ours, found, tmp_path / "run", **given)
    others = [batch for batch in found if int(batch[1][0]) != IGNORED]
    by_hand(theirs, others, lambda module, batch: functional.nll_loss(module(batch[0]), batch[1]), 8, 1e-2)
    assert_same(ours, theirs, close=1e-5)
    assert result.count == 2 * sum(len(x) for x, _ in others)
    norms = [line["grad_norm"] for line in logged(tmp_path / "run") if "grad_norm" in line]
    assert [number for number, norm in enumerate(norms) if not norm] == [2, 5, 8, 11]
    resumed = linear()
    with pytest.raises(ramlet.Interrupted):
        fit(resumed, found, tmp_path / "parts", listener=StopAt(3), **given)
    fit(resumed, found, tmp_path / "parts", **given)
    assert_same(resumed, ours)


def test_sums_of_nothing(tmp_path: Path) -> None:
    """A loss that returns (sum, count) may return (0, 0), with or without a gradient."""

    def summed(module: nn.Module, batch: Any, *, plain: bool) -> tuple[Tensor, int]:
        kept = batch[1] != IGNORED
        if plain and not bool(kept.any()):
            return torch.zeros(()), 0
        return functional.nll_loss(module(batch[0][kept]), batch[1][kept], reduction="sum"), int(kept.sum())

    found = [{"x": x, "y": y} for x, y in with_blank_batches()]  # so that only the loss knows the targets
    modules = [linear(), linear(), linear()]
    for plain in (False, True):
        fit(
            modules[plain],
            found,
            tmp_path / str(plain),
            loss=lambda module, batch, plain=plain: summed(module, (batch["x"], batch["y"]), plain=plain),
            **CONSTANT,
        )
    fit(modules[2], with_blank_batches(), tmp_path / "mean", loss=nn.NLLLoss(), **CONSTANT)
    assert_same(modules[0], modules[1])
    assert_same(modules[0], modules[2], close=1e-5)


def test_the_trial_takes_samples_with_targets() -> None:
    """The first sample, or the whole first batch, may have none."""
    x, y = batches()[0]
    some = y.clone()
    some[:3] = IGNORED
    blank = torch.full_like(y, IGNORED)
    larger = (torch.cat([x, x]), torch.cat([blank, blank]))
    for loader in ([(x, some)], [larger, (x, some)], iter([larger, (x, some)])):
        plan = ramlet.plan_module(linear(), loader, nn.NLLLoss(), memory=AMPLE, threads=1)
        assert plan.batch_size == 8
        assert plan.count == 5
    with pytest.raises(ramlet.SettingsError, match="every target in the first batches of the loader is ignored"):
        ramlet.plan_module(linear(), [(x, blank)], nn.NLLLoss(), memory=AMPLE, threads=1)


def test_an_iterator_keeps_the_batches_that_were_looked_at(tmp_path: Path) -> None:
    found = [with_blank_batches()[2], *batches()]
    ours, theirs = linear(), linear()
    fit(ours, iter(found), tmp_path / "ours", loss=nn.NLLLoss(), max_steps=7)
    fit(theirs, found, tmp_path / "theirs", loss=nn.NLLLoss(), max_steps=7)
    assert_same(ours, theirs)


RARE = torch.tensor([0.2, 3.0, 1.0, 0.0])
CRITERIA: dict[str, nn.Module] = {
    "ignore_index": nn.CrossEntropyLoss(ignore_index=1),
    "weight": nn.CrossEntropyLoss(weight=RARE),
    "small weights": nn.NLLLoss(weight=RARE / 10_000),
    "both, smoothed": nn.CrossEntropyLoss(weight=RARE, ignore_index=0, label_smoothing=0.1),
}


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
def test_a_criterion_divides_by_its_own_count(criterion: nn.Module, tmp_path: Path) -> None:
    """Two batches per step, in micro-batches of three: the loss, the steps and the score are those of the whole."""
    ours, theirs = linear(), linear()
    found = batches()[:4]
    given: dict[str, Any] = {"gradient_accumulation_steps": 2, "micro_batch": 3, "max_steps": 6, **CONSTANT}
    result = fit(ours, found, tmp_path / "run", loss=criterion, evals=found[:1], **given)
    assert result.plan.micro_batch == 3
    whole = [(torch.cat([a, c]), torch.cat([b, d])) for (a, b), (c, d) in (found[:2], found[2:])]
    losses = by_hand(theirs, whole, lambda module, batch: criterion(module(batch[0]), batch[1]), 6, 1e-2)
    assert [line["loss"] for line in logged(tmp_path / "run") if "loss" in line] == pytest.approx(losses, abs=1e-5)
    assert_same(ours, theirs, close=1e-4)
    score = float(criterion(ours(found[0][0]), found[0][1]).detach())
    assert result.scores["val"]["loss"] == pytest.approx(score, abs=1e-5)
    assert result.count > 0


def test_counts_below_one(tmp_path: Path) -> None:
    """The sum and the count of weights may both be small."""
    weights = RARE / 1000

    def summed(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        found = functional.nll_loss(module(batch[0]), batch[1], weight=weights, reduction="sum")
        return found, weights[batch[1]].sum()

    ours, theirs = linear(), linear()
    fit(ours, batches(), tmp_path / "ours", loss=summed, micro_batch=3)
    fit(theirs, batches(), tmp_path / "theirs", loss=nn.NLLLoss(weight=weights), micro_batch=3)
    assert_same(ours, theirs, close=1e-5)


def test_an_evaluation_without_targets(tmp_path: Path) -> None:
    blank = [with_blank_batches()[2]]
    with pytest.raises(ramlet.SettingsError, match="every target of the evaluation set val is ignored"):
        fit(linear(), batches(), tmp_path / "run", loss=nn.NLLLoss(), evals=blank)


def test_criteria_that_ignore_nothing(tmp_path: Path) -> None:
    """-100 is a number like any other to `L1Loss`."""
    y = torch.tensor([[-100], [3], [-100], [5]])
    whole, parts = nn.Linear(6, 1), nn.Linear(6, 1)
    parts.load_state_dict(whole.state_dict())
    x = torch.randn(4, 6)
    for module, micro_batch in ((whole, 4), (parts, 1)):
        out = tmp_path / f"in {micro_batch}"
        result = fit(module, [(x, y)], out, loss=nn.L1Loss(), micro_batch=micro_batch, max_steps=3, lr=1e-1)
        assert result.count == 12
    assert_same(whole, parts, close=1e-4)
