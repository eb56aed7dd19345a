"""The probe where the optimizer's update needs more memory than a micro-batch of any size."""

from __future__ import annotations

from functools import partial

import pytest

from ramlet.engines.plan import Task
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.probe import UNMEASURED, probe, work
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget
from test_plan_probe import MB, MadeUp


def test_a_micro_batch_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(64, 8, 1, 512, 4)
    monkeypatch.setattr("test_plan_probe.SHAPE", shape)
    forced = {"optimizer": "muon", "micro_batch": 2}
    replan = partial(
        make_plan, Task(shape, 1, 2, Budget(600 * MB), "bf16", forced=forced, resident=200 * MB), threads=0
    )
    plan = replan()
    assert plan.moment == "update"
    assert work(plan, 1) == work(plan, 2)
    machine = MadeUp(plan, 1.0, 5 * MB)
    found = probe(plan, machine.build, gauge=machine, replan=replan)
    assert found.peak == pytest.approx(plan.peak + 5 * MB + UNMEASURED, abs=4 * MB)
