"""A new optimizer is one module and its name: planned, predicted, stepped and stored like the others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ramlet.engines import OPTIMIZERS, plan
from ramlet.engines.native import plan as native
from ramlet.engines.plan import Task
from ramlet.engines.torch.optim import param_groups
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.predict import state_bytes
from ramlet.engines.torch.step import Trainee
from ramlet.errors import SettingsError
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import read_tensors_into, write_tensors
from ramlet.runtime.budget import Budget
from ramlet.training.settings import RunSettings

SHAPE = Shape(64, 16, 2, 32, 4)


class Momentum(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_scale: float = 1.0) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(grad_scale)
        return super().step(closure)


@pytest.fixture(autouse=True)
def momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("momentum")
    vars(module).update(
        WEIGHTS=("fp32",),
        state_bytes=lambda held, item: held.matrices * item + held.gains * 4,
        make=lambda weights, settings: Momentum(param_groups(weights, settings), lr=0.0, momentum=0.9),
    )
    monkeypatch.setitem(sys.modules, "ramlet.engines.torch.optim.momentum", module)
    monkeypatch.setattr(plan, "OPTIMIZERS", (*OPTIMIZERS, "momentum"))


def made(**forced: Any) -> plan.Plan:
    return make_plan(Task(SHAPE, 16, 4, Budget(10**9), forced={"optimizer": "momentum", **forced}))


def test_it_is_planned_stepped_and_stored(tmp_path: Path) -> None:
    choice = made().choice
    trainee = Trainee(SHAPE, choice, RunSettings(), device="cpu")
    trainee.reset(1)
    states = trainee.optimizer_tensors()
    assert set(states) == {"matrices.momentum_buffer", "gains.momentum_buffer"}
    assert state_bytes(SHAPE, choice)["optimizer"] == sum(each.nbytes for each in states.values())
    ids = torch.arange(64).view(4, 16)
    before = trainee.learn({"input_ids": ids, "targets": ids}, 1 / 64)
    trainee.update(0.1, 1.0)
    assert trainee.learn({"input_ids": ids, "targets": ids}, 1 / 64) < before
    write_tensors(tmp_path / "states", trainee.states())
    kept = {name: each.clone() for name, each in states.items()}
    trainee.reset(1)
    read_tensors_into(tmp_path / "states", trainee.states())
    assert all(torch.equal(each, kept[name]) for name, each in trainee.optimizer_tensors().items())


def test_an_engine_that_lacks_it_refuses_it() -> None:
    task = Task(SHAPE, 16, 4, Budget(10**9), forced={"optimizer": "momentum"})
    with pytest.raises(SettingsError, match=r"native engine has no momentum: use engine=.torch., or another optimizer"):
        native.make_plan(task, threads=1)


def test_weights_that_it_cannot_update_are_refused() -> None:
    with pytest.raises(SettingsError, match="momentum cannot update bf16 weights"):
        made(weights="bf16", compute="bf16")
