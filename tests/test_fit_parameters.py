"""The parameters of modules that `ramlet.fit` trains: unused, used later, frozen, and of any shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ramlet
from test_fit import StopAt, assert_same, fit, pairs, sgd

MARK = 9.0


class Partial(nn.Module):
    """One layer gets no gradient, and another one its first with the first marked batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 16)
        self.unused = nn.Linear(16, 16)
        self.late = nn.Linear(6, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inside(x)
        if bool((x == MARK).any()):
            hidden = hidden + self.late(x)
        found: Tensor = self.out(hidden.tanh())
        return found


def partial() -> Partial:
    torch.manual_seed(8)
    return Partial()


def marked() -> list[Any]:
    """The sixth batch of six is marked."""
    found = [tuple(each) for each in pairs(shuffle=False)]
    found[5][0][0, 0] = MARK
    return found


@pytest.mark.parametrize("optimizer", ["auto", "adamw8bit", "muon", sgd])
def test_resumes_without_the_states_of_parameters_that_have_none(optimizer: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "micro_batch": 4}
    whole, before = partial(), partial()
    fit(whole, marked(), tmp_path / "whole", **given)
    assert torch.equal(whole.unused.weight, before.unused.weight)
    assert not torch.equal(whole.late.weight, before.late.weight)
    for stop in (3, 8):  # before the other layer has a gradient, and after
        out = tmp_path / str(stop)
        with pytest.raises(ramlet.Interrupted):
            fit(partial(), marked(), out, listener=StopAt(stop), **given)
        resumed = partial()
        fit(resumed, marked(), out, **given)
        assert_same(resumed, whole)


class Plain(torch.optim.Optimizer):
    """Keeps only a number for each parameter, and no tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["steps"] = state.get("steps", 0) + 1
                    parameter -= group["lr"] / state["steps"] * parameter.grad


def adagrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.05)


@pytest.mark.parametrize("optimizer", [Plain, adagrad, torch.optim.AdamW])
def test_frozen_parameters_in_an_optimizer(optimizer: Any, tmp_path: Path) -> None:
    """`AdamW(module.parameters())` has them too; they stay as they are, whatever states the optimizer keeps of them."""

    def run(out: Path, **given: Any) -> nn.Module:
        module = partial()
        module.inside.requires_grad_(False)
        own = optimizer(module.parameters())
        fit(module, marked(), out, loss=nn.CrossEntropyLoss(), optimizer=own, lr=None, **given)
        return module

    whole = run(tmp_path / "whole")
    assert torch.equal(whole.inside.weight, partial().inside.weight)
    assert not torch.equal(whole.out.weight, partial().out.weight)
    with pytest.raises(ramlet.Interrupted):
        run(tmp_path / "parts", listener=StopAt(7))
    assert_same(run(tmp_path / "parts"), whole)


def test_an_optimizer_of_another_module(tmp_path: Path) -> None:
    other = torch.optim.AdamW(partial().parameters())
    with pytest.raises(ramlet.SettingsError, match="has parameters that are none of the module's: create it from"):
        fit(partial(), marked(), tmp_path / "run", loss=nn.CrossEntropyLoss(), optimizer=other)


class Scaled(nn.Module):
    """A scalar, and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.empty.sum()


def test_muon_with_a_scalar(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), Scaled(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    result = fit(module, marked(), tmp_path / "run", loss=nn.CrossEntropyLoss(), optimizer="muon")
    assert result.plan.optimizer == "muon"
    assert float(module[1].scale.detach()) != 1.0


def test_another_optimizer_of_the_same_kind_of_function(tmp_path: Path) -> None:
    """The class of what it makes decides, not that of the function."""
    batches = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))]
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "max_steps": 4}
    for optimizer in (torch.optim.SGD, lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
        out = tmp_path / type(optimizer).__name__
        with pytest.raises(ramlet.Interrupted):
            result = fit(nn.Linear(3, 2), batches, out, optimizer=optimizer, listener=StopAt(2), **given)
        for other in (torch.optim.Adam, lambda parameters: torch.optim.Adam(parameters), "adamw"):
            with pytest.raises(ramlet.SettingsError, match=r"has a run with optimizer SGD, not [Aa]dam"):
                fit(nn.Linear(3, 2), batches, out, optimizer=other, **given)
        result = fit(nn.Linear(3, 2), batches, out, optimizer=torch.optim.SGD, **given)
        assert result.plan.optimizer == "SGD"
