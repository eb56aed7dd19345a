"""On a GPU: tries plans under the allocator's cap until one fits.

The memory of a captured step cannot be predicted to the last block: the graph's own pool, the workspaces of its
stream, and evaluations on top of it. On a GPU trying is safe, because the allocator refuses to exceed the budget; so a
trial does what a run does: states, capture, a step, an evaluation. Its peak becomes the prediction. A plan that does
not fit is replaced by one with a correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ramlet.engines import Ranks, training_names
from ramlet.engines.plan import Choice, Correction, Plan
from ramlet.engines.torch.device import Device
from ramlet.engines.torch.step import Trainee
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import Budget

ATTEMPTS = 8
REFUSED = 1 << 62
"""As the peak of a rank whose allocator refused."""
LEAST_STEP = 50_000_000
"""The smallest correction after a plan that did not fit."""


def tried(
    replan: Callable[..., Plan],
    build: Callable[[Choice], Trainee],
    *,
    device: Device,
    budget: Budget,
    eval_rows: int,
    ranks: Ranks | None = None,
) -> Plan:
    """The first plan that fits all ranks, with the peak that was measured on this one as the prediction."""
    ranks = ranks or Ranks()
    extra = 0
    for _ in range(ATTEMPTS):
        plan = replan(correction=Correction(extra=extra))
        device.release()
        torch.cuda.reset_peak_memory_stats(device.index)
        peak = _peak(plan, build, device, eval_rows)
        device.release()
        highest = ranks.most(REFUSED if peak is None else peak)
        if peak is not None and highest <= budget.total - budget.reserve:
            overhead = plan.parts["overhead"] + peak - plan.peak
            return replace(plan, parts={**plan.parts, "overhead": overhead}, measured=peak)
        missing = 0 if highest == REFUSED else highest - budget.total + budget.reserve
        extra += max(LEAST_STEP, budget.total // 32, missing)
    raise BudgetError(f"no plan that was tried fits {budget}: give more {option('memory')}, or use a smaller model")


def _peak(plan: Plan, build: Callable[[Choice], Trainee], device: Device, eval_rows: int) -> int | None:
    """The most bytes reserved; None if the allocator refused."""
    try:
        trainee = build(plan.choice)
        trainee.prepare_states()
        scale = 1.0 / (plan.batch_size * plan.seq_len)
        trainee.capture(plan.part_sizes(), plan.seq_len, scale, document_mask=plan.document_mask)
        names = training_names(plan.document_mask)
        for part in plan.part_sizes():
            batch = {name: torch.zeros((part, plan.seq_len), dtype=torch.int64) for name in names}
            trainee.learn({**batch, "samples": range(part)}, scale)
        trainee.update(0.0, 1.0)
        rows = min(eval_rows, plan.choice.micro_batch)
        few = {name: torch.zeros((rows, plan.seq_len), dtype=torch.int64) for name in names}
        for _ in range(2):  # the second is captured
            trainee.model.token_losses(few)
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_reserved(device.index)
