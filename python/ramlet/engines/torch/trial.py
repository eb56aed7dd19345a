"""On a GPU: the plan as it will be run, tried under the allocator's cap, until one fits.

A step that is recorded takes memory that a formula does not foresee to the last block: the recording's own pool, the
workspaces of its stream, what evaluating takes beside it. On a GPU trying is safe, for the allocator refuses what
would go over the budget; so the trial is the run itself: states, recording, a step, an evaluation. What it held at
most is the prediction. What does not fit is planned again with that much more in mind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ramlet.engines import training_names
from ramlet.engines.plan import Choice, Correction, Plan
from ramlet.engines.torch.device import Device
from ramlet.engines.torch.step import Trainee
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import Budget

__all__ = ["tried"]

ATTEMPTS = 8
LEAST_STEP = 50_000_000
"""By how much more is planned for, at least, after a plan that did not fit."""


def tried(
    replan: Callable[..., Plan], build: Callable[[Choice], Trainee], *, device: Device, budget: Budget, eval_rows: int
) -> Plan:
    """The first plan that fits, with what it held as its prediction."""
    extra = 0
    for _ in range(ATTEMPTS):
        plan = replan(correction=Correction(extra=extra))
        device.release()
        torch.cuda.reset_peak_memory_stats(device.index)
        held = _held(plan, build, device, eval_rows)
        device.release()
        if held is not None and held <= budget.total - budget.reserve:
            overhead = plan.parts["overhead"] + held - plan.peak
            return replace(plan, parts={**plan.parts, "overhead": overhead}, measured=held)
        missing = 0 if held is None else held - budget.total + budget.reserve
        extra += max(LEAST_STEP, budget.total // 32, missing)
    raise BudgetError(
        f"nothing that was tried fits into {budget}: give more {option('memory')}, or take a smaller model"
    )


def _held(plan: Plan, build: Callable[[Choice], Trainee], device: Device, eval_rows: int) -> int | None:
    """The most that was reserved; None where the allocator refused."""
    try:
        trainee = build(plan.choice)
        trainee.prepare_states()
        scale = 1.0 / (plan.batch_size * plan.seq_len)
        trainee.capture(plan.part_sizes(), plan.seq_len, scale, document_mask=plan.document_mask)
        names = training_names(plan.document_mask)
        for rows in plan.part_sizes():
            batch = {name: torch.zeros((rows, plan.seq_len), dtype=torch.int64) for name in names}
            trainee.learn(batch, scale)
        trainee.update(0.0, 1.0)
        few = batch["input_ids"][:eval_rows].to(device.name)
        trainee.model.losses(few, few)
        device.synchronize()
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_reserved(device.index)
