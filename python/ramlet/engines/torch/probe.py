"""A few real steps before the first: measures the memory of a plan and corrects it.

    replan = partial(make_plan, task)                           # called with `correction=`
    plan = probe(plan, build, gauge=ResidentGauge(meter), replan=replan)

Two micro-batches of 1 with an optimizer step in between, then two of the planned size, with random ids. The two peaks
fit `a + b * tokens`: a constant, and the ratio of a micro-batch's memory to its prediction. A size is tried only if the
measurements so far say that it stays within the budget, with a micro-batch of 2 in between if in doubt, so the probe
itself never exceeds it. A plan that turns out too large is replaced by one with the correction; if nothing fits any
more, `replan` raises the error that names the smallest budget that does.

Weights and optimizer states are useless afterwards: the caller initializes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ramlet.engines import Trainee
from ramlet.engines.plan import Choice, Correction, Plan
from ramlet.engines.torch.predict import work_bytes
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import Budget, format_bytes

SLACK = 64
"""One part in this many of the budget stays free after measuring: hours of training need more than a probe of a second.
"""

ROUNDS = 6
"""Plans measured at most; each costs a few micro-batches. No plan is used without having been measured."""

UNMEASURED = 15_000_000
"""What a run needs beyond its probe to evaluate, save and report: mostly 5 MB, sometimes 25 (benchmarks/budgets.py).
Added to the prediction."""

MOST_UNMEASURED = 26_000_000
"""The same when deciding whether a plan fits."""

UNSEEN, SEEN = 2.0, 1.1
"""How much larger than expected a size may be, before and after another size was measured."""

SCALE = 1e-6
"""Of the gradients, which are not used."""


class Gauge(Protocol):
    """Measures the peak since the last reset."""

    def settle(self) -> None:
        """Returns freed memory, which would otherwise add to that of the next plan, and of the run."""

    def reset(self) -> None: ...

    def peak(self) -> int: ...


def probe(plan: Plan, build: Callable[[Choice], Trainee], *, gauge: Gauge, replan: Callable[..., Plan]) -> Plan:
    """The plan with its measured memory, or another one that fits; BudgetError if none does.

    The worst correction so far also applies to the next plans, each of which is smaller than the last.
    """
    most = extra = 0
    factor = 1.0
    for _ in range(ROUNDS):
        trainee = build(plan.choice)
        correction, peak = _measure(plan, trainee, gauge)
        del trainee
        gauge.settle()
        most = max(most, peak)
        needed = max(expected(plan, plan.choice.micro_batch, correction), peak) + _margin(plan.budget)
        if needed <= plan.budget:
            return _corrected(plan, correction, peak, most)
        # At least one step: neighboring plans differ by less than the noise of the measurement.
        least = extra + plan.budget // SLACK
        extra = max(least, correction.extra + allowance(Budget(plan.budget)).extra)
        factor = max(factor, correction.factor)
        plan = replan(correction=Correction(factor, extra))
    enough = -(-(needed + plan.held) // 10**6)
    raise BudgetError(
        f"needs at least {enough}MB, as measured, where the plan fits {format_bytes(plan.budget + plan.held)}: "
        f"give more, or use a smaller model, a shorter {option('seq_len')}",
        needed=enough * 10**6,
        budget=plan.budget + plan.held,
    )


def _margin(budget: int) -> int:
    """What must stay free on top of the measured memory."""
    return MOST_UNMEASURED + budget // SLACK


def allowance(budget: Budget) -> Correction:
    """The correction of the first plan, which itself leaves only the reserve free: its probe must find the margin."""
    return Correction(extra=max(0, _margin(budget.total) - budget.reserve))


def _measure(plan: Plan, trainee: Trainee, gauge: Gauge) -> tuple[Correction, int]:
    """The correction, and the highest peak."""
    planned = plan.choice.micro_batch
    # As in a run: states allocated after the first activations would fragment the heap.
    trainee.prepare_states()
    gauge.reset()
    batch = _batch(plan, 1)
    trainee.learn(batch, SCALE)
    trainee.update(0.0, 1.0)
    trainee.learn(batch, SCALE)  # now with the optimizer's states, which the step has allocated
    first = highest = gauge.peak()
    correction = Correction(extra=first - expected(plan, 1, Correction()))
    doubt = UNSEEN
    while (rows := _next_size(plan, correction, doubt)) is not None:
        batch = _batch(plan, rows)
        gauge.reset()
        trainee.learn(batch, SCALE)
        trainee.learn(batch, SCALE)
        peak = gauge.peak()
        highest = max(highest, peak)
        # Two sizes, two unknowns. Both peaks include the same optimizer states, weights and libraries.
        # If the update needs more than either, the size changes nothing.
        more = work(plan, rows) - work(plan, 1)
        factor = max(0.0, (peak - first) / more) if more else 1.0
        correction = Correction(factor, peak - expected(plan, rows, Correction(factor)))
        if rows == planned:
            break
        correction = Correction(max(1.0, factor), correction.extra)
        doubt = SEEN
    return correction, highest


def expected(plan: Plan, rows: int, correction: Correction, doubt: float = 1.0) -> int:
    """The peak with micro-batches of this many rows, with this correction instead of the plan's."""
    known = plan.parts["activations"] + plan.parts["logits"] + plan.correction.extra
    return plan.peak - known + correction.extra + int(work(plan, rows) * correction.factor * doubt)


def work(plan: Plan, rows: int) -> int:
    """The predicted memory of a micro-batch of this many rows, without a correction."""
    import torch

    return work_bytes(
        plan.shape,
        plan.choice.with_(micro_batch=rows),
        seq_len=plan.seq_len,
        device=plan.device,
        document_mask=plan.document_mask,
        threads=torch.get_num_threads(),
    )


def _next_size(plan: Plan, correction: Correction, doubt: float) -> int | None:
    """The planned micro-batch if it is safe, else 2, once; None if neither is."""
    planned = plan.choice.micro_batch
    for rows in (planned, 2) if doubt == UNSEEN else (planned,):
        if 1 < rows <= planned and expected(plan, rows, correction, doubt) <= plan.budget:
            return rows
    return None


def _batch(plan: Plan, rows: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, plan.shape.vocab_size, (rows, plan.seq_len + 1), generator=generator)
    batch: dict[str, Any] = {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
    batch["samples"] = range(rows)
    if plan.document_mask:
        batch["position_ids"] = torch.arange(plan.seq_len).repeat(rows, 1)
        batch["document_ids"] = torch.zeros(rows, plan.seq_len, dtype=torch.int64)
    return batch


def _corrected(plan: Plan, correction: Correction, peak: int, most: int) -> Plan:
    """The memory of libraries differs between machines: the measurement wins, whether higher or lower.

    `most` is the highest peak of all probes: that of a rejected plan is part of the run's peak too.
    """
    highest = max(max(expected(plan, plan.choice.micro_batch, correction), peak) + UNMEASURED, most)
    parts = {**plan.parts, "overhead": plan.parts["overhead"] + highest - plan.peak}
    return replace(plan, parts=parts, measured=peak)
