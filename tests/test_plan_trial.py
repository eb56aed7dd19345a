"""The trial of a plan on a GPU, with one that is made up: it refuses what goes over, and says what was held at most."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ramlet.engines.plan import Choice, Plan, Task
from ramlet.engines.torch.plan import make_plan
from ramlet.engines.torch.trial import tried
from ramlet.errors import BudgetError
from ramlet.model.shape import Shape
from ramlet.runtime.budget import Budget

SHAPE = Shape(4096, 128, 4, 128, 4)
MB = 1_000_000


class MadeUpGpu:
    """Holds `fixed` bytes and `a_row` for every row of a step; more than `cap` is refused."""

    kind, name, index = "cuda", "cpu", 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, cap: int, fixed: int, a_row: int) -> None:
        self.cap, self.fixed, self.a_row = cap, fixed, a_row
        self.most = 0
        self.built: list[Choice] = []
        self.captured: list[set[int]] = []
        self.learned: list[int] = []
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda index: setattr(self, "most", 0))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda index: self.most)

    def release(self) -> None: ...

    def synchronize(self) -> None: ...

    def build(self, choice: Choice) -> Any:
        self.built.append(choice)
        model = SimpleNamespace(token_losses=lambda batch: self.take(len(batch["input_ids"])))
        return SimpleNamespace(
            prepare_states=lambda: None,
            capture=self.capture,
            learn=lambda batch, scale: self.learn(len(batch["input_ids"])),
            update=lambda rate, clip: None,
            model=model,
        )

    def capture(self, sizes: Iterable[int], seq_len: int, scale: float, *, document_mask: bool) -> None:
        self.captured.append(set(sizes))
        for rows in sizes:
            self.take(rows)

    def learn(self, rows: int) -> None:
        self.learned.append(rows)
        self.take(rows)

    def take(self, rows: int) -> None:
        held = self.fixed + rows * self.a_row
        if held > self.cap:
            raise torch.OutOfMemoryError("made up")
        self.most = max(self.most, held)


def replanner(budget: int, batch_size: int, **forced: Any) -> Any:
    return partial(make_plan, Task(SHAPE, 128, batch_size, Budget(budget), "bf16", forced=forced), device="cuda")


def try_on(gpu: MadeUpGpu, replan: Any, budget: int) -> Plan:
    return tried(replan, gpu.build, device=gpu, budget=Budget(budget), eval_rows=2)  # type: ignore[arg-type]


def test_every_size_of_micro_batch_is_tried_and_what_was_held_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch, cap=500 * MB, fixed=200 * MB, a_row=3 * MB)
    plan = try_on(gpu, replanner(500 * MB, 7, micro_batch=3), 500 * MB)
    assert gpu.captured == [{3, 1}]
    assert sorted(gpu.learned) == [1, 3]
    assert plan.peak == plan.measured == 209 * MB
    assert sum(plan.parts.values()) == plan.peak


def test_what_the_allocator_refuses_is_planned_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch, cap=400 * MB, fixed=200 * MB, a_row=5 * MB)
    plan = try_on(gpu, replanner(400 * MB, 64), 400 * MB)
    assert gpu.built[0].micro_batch > plan.choice.micro_batch
    assert plan.peak <= 400 * MB


def test_what_never_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeUpGpu(monkeypatch, cap=400 * MB, fixed=401 * MB, a_row=MB)
    with pytest.raises(BudgetError, match=r"needs at least|no plan that was tried fits"):
        try_on(gpu, replanner(400 * MB, 64), 400 * MB)
