"""The probe: with machines that are made up, and with a real model in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramlet.engines.plan import Choice, Plan, Task
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.probe import UNMEASURED, probe, work
from ramlet.errors import BudgetError
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget

SHAPE = Shape(4096, 128, 4, 128, 4)
MB = 1_000_000


class MadeUp:
    """A machine on which a step takes `factor` times the predicted work and `extra` bytes more; remembers its peaks."""

    def __init__(self, plan: Plan, factor: float, extra: int) -> None:
        self.plan, self.factor, self.extra = plan, factor, extra
        self.highest = 0
        self.sizes: list[int] = []
        self.alive = 0
        self.settled = 0
        self._peak = 0

    def build(self, choice: Choice) -> Any:
        assert self.alive == 0, "two models at once would need twice the memory"
        machine = self
        made = make_plan_of(self.plan, choice)

        class Trainee:
            def __init__(self) -> None:
                machine.alive += 1

            def __del__(self) -> None:
                machine.alive -= 1

            def learn(self, batch: Mapping[str, Any], scale: float) -> None:
                rows = len(batch["input_ids"])
                assert batch["input_ids"].shape == batch["targets"].shape == (rows, machine.plan.seq_len)
                machine.sizes.append(rows)
                fixed = made.peak - work(made, choice.micro_batch)
                machine.take(fixed + machine.extra + int(work(made, rows) * machine.factor))

            def update(self, rate: float, clip: float) -> None:
                assert rate == 0.0

            def prepare_states(self) -> None:
                pass

        return Trainee()

    def take(self, size: int) -> None:
        self._peak = max(self._peak, size)
        self.highest = max(self.highest, size)

    def settle(self) -> None:
        assert self.alive == 0
        self.settled += 1

    def reset(self) -> None:
        self._peak = 0

    def peak(self) -> int:
        return self._peak


def make_plan_of(plan: Plan, choice: Choice) -> Plan:
    """What would be predicted for a choice, with no correction and no limit."""
    forced = dict(vars(choice))
    task = Task(SHAPE, plan.seq_len, plan.batch_size, Budget(1 << 50), forced=forced, resident=200 * MB)
    return make_plan(task, threads=0)


def planner(budget: int) -> Any:
    return partial(make_plan, Task(SHAPE, 128, 32, Budget(budget), "bf16", resident=200 * MB), threads=0)


def test_a_true_prediction_is_kept_but_for_what_a_run_takes_beyond_a_probe() -> None:
    replan = planner(600 * MB)
    plan = replan()
    machine = MadeUp(plan, 1.0, 0)
    probed = probe(plan, machine.build, gauge=machine, replan=replan)
    assert probed.choice == plan.choice
    assert probed.peak == plan.peak + UNMEASURED
    assert probed.measured == machine.highest > 0
    assert machine.sizes[0] == 1


@pytest.mark.parametrize("extra", [30 * MB, -30 * MB])
def test_a_little_more_or_less_is_taken_into_the_prediction(extra: int) -> None:
    replan = planner(600 * MB)
    plan = replan()
    machine = MadeUp(plan, 1.0, extra)
    probed = probe(plan, machine.build, gauge=machine, replan=replan)
    assert probed.choice == plan.choice
    assert probed.peak == plan.peak + extra + UNMEASURED


def test_a_plan_that_is_too_large_is_made_again() -> None:
    budget = planner(10**10)().peak * 33 // 31
    replan = planner(budget)
    plan = replan()
    machine = MadeUp(plan, 1.6, 5 * MB)
    probed = probe(plan, machine.build, gauge=machine, replan=replan)
    assert probed.choice.micro_batch < plan.choice.micro_batch
    assert machine.settled >= 2
    assert probed.peak <= budget
    assert machine.highest <= budget


def test_what_fits_no_more_is_refused_with_the_smallest() -> None:
    replan = planner(310 * MB)
    plan = replan()
    machine = MadeUp(plan, 1.0, 80 * MB)
    with pytest.raises(BudgetError, match="needs at least"):
        probe(plan, machine.build, gauge=machine, replan=replan)


@settings(max_examples=200)
@given(
    budget=st.integers(300, 700),
    factor=st.floats(0.5, 1.9),
    extra=st.integers(-20 * MB, 60 * MB),
)
def test_no_probe_breaks_the_budget_and_no_plan_after_it(budget: int, factor: float, extra: int) -> None:
    replan = planner(budget * MB)
    try:
        plan = replan()
    except BudgetError:
        return
    machine = MadeUp(plan, factor, extra)
    # A machine on which even the smallest is too much breaks it by being asked; that is what the reserve is for.
    smallest = plan.peak - work(plan, plan.choice.micro_batch) + extra + int(work(plan, 1) * factor)
    try:
        probed = probe(plan, machine.build, gauge=machine, replan=replan)
    except BudgetError:
        assert machine.highest <= max(budget * MB, smallest)
        return
    assert machine.alive == 0
    assert machine.highest <= max(budget * MB, smallest)
    bare = make_plan_of(probed, probed.choice)
    taken = work(bare, probed.choice.micro_batch)
    assert bare.peak - taken + extra + int(taken * factor) <= probed.peak + 1000  # of rounding
    assert probed.peak <= budget * MB


REAL = """
import json, sys
from functools import partial
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.model.shape import Shape
from ramlet.engines.torch.base_memory import load_torch
from ramlet.runtime.settled import settled_memory
from ramlet.engines.plan import Task
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.gauge import ResidentGauge
from ramlet.engines.torch.probe import probe
torch = load_torch(1)
from ramlet.training.settings import RunSettings
from ramlet.engines.torch.step import Trainee
shape = Shape(4096, 128, 4, 256, 4)
budget = Budget(int(sys.argv[1]))
with Meter(budget) as meter:
    base = settled_memory()
    replan = partial(make_plan, Task(shape, 128, 16, budget, resident=base), threads=1)
    plan = replan()
    build = lambda choice: Trainee(shape, choice, RunSettings(), device="cpu")
    probed = probe(plan, build, gauge=ResidentGauge(meter), replan=replan)
print(json.dumps({"plan": plan.to_dict(), "probed": probed.to_dict(), "peak": meter.peak,
                  "compiler": "torch._dynamo" in sys.modules, "sympy": "sympy" in sys.modules}))
"""


def test_a_real_model_is_measured() -> None:
    folder = Path(__file__).parent.parent / "python"
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REAL, str(900 * MB)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    probed = Plan.from_dict(told["probed"])
    assert 0 < probed.measured <= told["peak"] <= 900 * MB
    assert probed.measured == pytest.approx(probed.peak, rel=0.1)
    assert probed.choice.micro_batch == 16
    # Either would be tens of megabytes that no one planned.
    assert not told["compiler"]
    assert not told["sympy"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the mark that is reset is Linux's")
def test_the_gauge_sees_what_was_there_for_a_moment() -> None:
    """In a process of its own: the kernel's mark of this one may be higher already."""
    script = """
from ramlet.runtime.meter import Meter
from ramlet.engines.gauge import ResidentGauge

MB = 10**6
with Meter() as meter:
    gauge = ResidentGauge(meter)
    gauge.reset()
    before = gauge.peak()
    block = bytearray(80 * MB)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert gauge.peak() - before >= 79 * MB
    gauge.reset()
    assert gauge.peak() - before < 40 * MB
    assert meter.peak - before >= 79 * MB, "the meter keeps what the mark forgets"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
