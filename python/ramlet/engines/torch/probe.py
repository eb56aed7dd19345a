"""A few real steps before the first: what a plan takes, measured, and the plan corrected by it.

    replan = partial(make_plan, shape, ..., base=base)          # what made the plan; the probe adds `correction=`
    plan = probe(plan, build, gauge=ResidentGauge(meter), replan=replan)

One accumulation window (two micro-batches, with a step of the optimizer between them) at a micro-batch of 1, then two
at the planned size, on random ids. The two peaks fit `a + b * tokens`: what is there whatever the size, and how far the
work of a micro-batch is from its prediction. A size is tried only when what was measured so far says that it stays
within the budget, with a micro-batch of 2 in between where there is doubt, so the probe itself never breaks it. A plan
that turns out too large is made again with what was learned; where nothing fits any more, `replan` refuses with the
smallest budget that does.

Weights and optimizer states are of no use afterwards: the caller initialises them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ramlet.engines.plan import Choice, Correction, Plan
from ramlet.engines.torch.base_memory import release_heap
from ramlet.engines.torch.predict import work_bytes
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter

__all__ = ["Gauge", "ResidentGauge", "allowance", "expected", "probe", "work"]

SLACK = 64
"""This part of a budget stays free of what was measured: a run of hours meets more than a probe of a second."""

ROUNDS = 6
"""A plan is measured at most so often; every round costs a few micro-batches. None is run that was not."""

UNMET = 15_000_000
"""What a run takes beyond its probe, for it also evaluates, saves and reports: mostly 5 MB, now and then 25
(benchmarks/budgets.py). Added to the prediction."""

MOST_UNMET = 26_000_000
"""The same where it decides whether a plan fits."""

UNSEEN, SEEN = 2.0, 1.1
"""By how much the work of a size may be larger than is expected before any other size was seen, and after."""

SCALE = 1e-6
"""Of the gradients, which no one looks at."""


class Trainee(Protocol):
    """What is probed; ramlet.engines.torch.step has the real one."""

    def learn(self, batch: Mapping[str, Any], scale: float) -> Any: ...

    def update(self, rate: float, clip: float) -> Any: ...

    def prepare_states(self) -> None: ...


class Gauge(Protocol):
    """The highest memory since it was last reset."""

    def settle(self) -> None:
        """Gives back what is freed, or the next plan, and the run itself, would be beside what this one had."""

    def reset(self) -> None: ...

    def peak(self) -> int: ...


class ResidentGauge:
    """Resident memory by the kernel's high-water mark, which is reset; the meter keeps what it was before."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._resets = True

    def settle(self) -> None:
        # Not the libraries' pages: the run needs them again, and how many come back changes with the page cache.
        release_heap()

    def reset(self) -> None:
        self._meter.sample()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            # Then the mark is that of the whole run so far: never too low.
            self._resets = False

    def peak(self) -> int:
        self._meter.sample()
        if not self._resets:
            return self._meter.peak
        marks = Path("/proc/self/status").read_text().split("VmHWM:", 1)
        return max(int(marks[1].split()[0]) * 1024, resident_memory()) if len(marks) == 2 else self._meter.peak


def probe(plan: Plan, build: Callable[[Choice], Trainee], *, gauge: Gauge, replan: Callable[..., Plan]) -> Plan:
    """The plan with what was measured in it, or another that fits better; BudgetError where none does.

    What one plan taught is held against the next ones too, at its worst: each of these is smaller than the last.
    """
    most = extra = 0
    factor = 1.0
    for _ in range(ROUNDS):
        trainee = build(plan.choice)
        correction, peak = _measure(plan, trainee, gauge)
        del trainee
        gauge.settle()
        most = max(most, peak)
        needed = expected(plan, plan.choice.micro_batch, correction) + _margin(plan.budget)
        if needed <= plan.budget:
            return _corrected(plan, correction, peak, most)
        # By a step at least: neighbouring plans differ by less than what measuring scatters by.
        least = extra + plan.budget // SLACK
        extra = max(least, correction.extra + allowance(Budget(plan.budget)).extra)
        factor = max(factor, correction.factor)
        plan = replan(correction=Correction(factor, extra))
    enough = -(-(needed + plan.held) // 10**6)
    raise BudgetError(
        f"needs at least {enough}MB, measured, for what was planned within {format_bytes(plan.budget + plan.held)}: "
        f"give more, or take a smaller model, a shorter {option('seq_len')}",
        needed=enough * 10**6,
        budget=plan.budget + plan.held,
    )


def _margin(budget: int) -> int:
    """What must stay free beside what a probe has measured."""
    return MOST_UNMET + budget // SLACK


def allowance(budget: Budget) -> Correction:
    """What a plan is made with, so that its probe finds the margin: of itself it keeps the budget's reserve free."""
    return Correction(extra=max(0, _margin(budget.total) - budget.reserve))


def _measure(plan: Plan, trainee: Trainee, gauge: Gauge) -> tuple[Correction, int]:
    """What was learned, and the highest peak."""
    planned = plan.choice.micro_batch
    # As a run does it: states that came after the first activations would leave gaps where these were.
    trainee.prepare_states()
    gauge.reset()
    batch = _batch(plan, 1)
    trainee.learn(batch, SCALE)
    trainee.update(0.0, 1.0)
    trainee.learn(batch, SCALE)  # now beside the optimizer's states, which the step has made
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
        # Two sizes, two unknowns. Both peaks hold the same optimizer states, weights and libraries.
        factor = max(0.0, (peak - first) / (work(plan, rows) - work(plan, 1)))
        correction = Correction(factor, peak - expected(plan, rows, Correction(factor)))
        if rows == planned:
            break
        correction = Correction(max(1.0, factor), correction.extra)
        doubt = SEEN
    return correction, highest


def expected(plan: Plan, rows: int, correction: Correction, doubt: float = 1.0) -> int:
    """The peak with micro-batches of so many rows, corrected otherwise than the plan's parts are."""
    known = plan.parts["activations"] + plan.parts["logits"] + plan.correction.extra
    return plan.peak - known + correction.extra + int(work(plan, rows) * correction.factor * doubt)


def work(plan: Plan, rows: int) -> int:
    """What a micro-batch of so many rows takes, as predicted without a correction."""
    choice = plan.choice.with_(micro_batch=rows)
    return work_bytes(plan.shape, choice, seq_len=plan.seq_len, device=plan.device, document_mask=plan.document_mask)


def _next_size(plan: Plan, correction: Correction, doubt: float) -> int | None:
    """The planned micro-batch where it is safe, else 2, once; None where neither is."""
    planned = plan.choice.micro_batch
    for rows in (planned, 2) if doubt == UNSEEN else (planned,):
        if 1 < rows <= planned and expected(plan, rows, correction, doubt) <= plan.budget:
            return rows
    return None


def _batch(plan: Plan, rows: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, plan.shape.vocab_size, (rows, plan.seq_len + 1), generator=generator)
    batch = {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
    if plan.document_mask:
        batch["position_ids"] = torch.arange(plan.seq_len).repeat(rows, 1)
        batch["document_ids"] = torch.zeros(rows, plan.seq_len, dtype=torch.int64)
    return batch


def _corrected(plan: Plan, correction: Correction, peak: int, most: int) -> Plan:
    """What libraries take of themselves differs from machine to machine: the probe's word counts, up or down.

    `most` is the highest of all probes: one of a plan that was given up is part of the run's peak too.
    """
    highest = max(max(expected(plan, plan.choice.micro_batch, correction), peak) + UNMET, most)
    parts = {**plan.parts, "overhead": plan.parts["overhead"] + highest - plan.peak}
    return replace(plan, parts=parts, measured=peak)
