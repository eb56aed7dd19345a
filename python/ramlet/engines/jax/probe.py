"""Compiles a plan, asks XLA what it needs, runs a real step, and corrects the plan by what was measured.

    plan, program = fitted(plan, compile_for, replan, place, ranks)
    plan = measured(plan, Trainee(program, ranks), gauge)

First XLA: a compiled step says how much memory its arguments, results and temporaries take. That replaces the formulas,
without allocating anything. A plan that turns out too large is replaced by a smaller one, with the difference as its
correction. Then a step runs on random ids, and the memory at its peak replaces both: on a CPU what is resident, on
other devices what XLA's allocator counts, which includes the workspaces of libraries that XLA does not tell of.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ramlet.engines.gauge import ResidentGauge
from ramlet.engines.jax.device import DeviceGauge
from ramlet.engines.jax.plan import LATER, Place
from ramlet.engines.jax.ranks import JaxRanks
from ramlet.engines.jax.step import Program, Trainee
from ramlet.engines.plan import Correction, Plan
from ramlet.errors import BudgetError, option
from ramlet.runtime.budget import Budget, format_bytes

ROUNDS = 8
SCALE = 1e-6
"""Of the gradients, which are not used."""


class Needed(NamedTuple):
    """Bytes of a compiled step on one device."""

    arguments: int
    temporary: int
    results: int
    """That do not take the place of arguments."""

    @property
    def total(self) -> int:
        return self.arguments + self.temporary + self.results


def needed(program: Program) -> Needed | None:
    """What XLA says; None if this platform does not."""
    about = program.compiled.memory_analysis()
    if about is None or not about.argument_size_in_bytes:
        return None
    results = max(0, about.output_size_in_bytes - about.alias_size_in_bytes)
    return Needed(about.argument_size_in_bytes, about.temp_size_in_bytes, results)


def fitted(
    plan: Plan, compile_for: Callable[[Plan], Program], replan: Callable[..., Plan], place: Place, ranks: JaxRanks
) -> tuple[Plan, Program]:
    """A plan that fits by what XLA says of it, and its program; BudgetError if none does."""
    for _ in range(ROUNDS):
        began = time.monotonic()
        program = compile_for(plan)
        said = needed(program)
        seconds = time.monotonic() - began
        corrected = plan if said is None else _by_xla(plan, said, place)
        limit = plan.budget - Budget(plan.budget).reserve
        peak = ranks.most(corrected.peak)
        if peak <= limit:
            note = f"compiled in {seconds:.1f} s, which the next run of this shape does not need"
            return replace(corrected, notes=(*corrected.notes, note)), program
        extra = plan.correction.extra + peak - plan.peak
        plan = replan(correction=Correction(1.0, max(extra, plan.correction.extra + plan.budget // 64)))
    raise too_large(peak, plan)


def _by_xla(plan: Plan, said: Needed, place: Place) -> Plan:
    """What XLA says takes the place of the formulas; what is not weights, states or gradients is activations."""
    parts = dict(plan.parts)
    at_once = place.in_one_memory
    total = said.total * at_once
    known = parts["weights"] + parts["gradients"] + parts["optimizer"] + parts["logits"]
    parts["activations"] = max(0, total - known)
    parts["overhead"] -= plan.correction.extra
    return replace(plan, parts=parts, correction=Correction())


def measured(plan: Plan, trainee: Trainee, gauge: ResidentGauge | DeviceGauge) -> Plan:
    """The plan with the memory of a real step."""
    trainee.prepare_states()
    gauge.reset()
    for _ in range(2):
        for number in range(trainee.program.accumulation):
            trainee.learn(_batch(plan, number), SCALE)
        float(trainee.update(0.0, 1.0))
    peak = gauge.peak()
    expected = peak + (LATER if plan.device == "cpu" else 0)
    parts = {**plan.parts, "overhead": plan.parts["overhead"] + expected - plan.peak}
    if parts["overhead"] < 0:
        parts["activations"] += parts["overhead"]
        parts["overhead"] = 0
    return replace(plan, parts=parts, measured=peak)


def too_large(peak: int, plan: Plan) -> BudgetError:
    """If every plan turned out larger than it should be."""
    enough = -(-(peak + peak // 32 + plan.held) // 10**6)
    return BudgetError(
        f"needs at least {enough}MB, as measured, where the plan fits {format_bytes(plan.budget + plan.held)}: "
        f"give more, or use a smaller model, a shorter {option('seq_len')}",
        needed=enough * 10**6,
        budget=plan.budget + plan.held,
    )


def _batch(plan: Plan, seed: int) -> dict[str, Any]:
    rows = plan.choice.micro_batch
    ids = np.random.default_rng(seed).integers(0, plan.shape.vocab_size, (rows, plan.seq_len + 1))
    batch: dict[str, Any] = {"input_ids": ids[:, :-1], "targets": ids[:, 1:], "samples": range(rows)}
    if plan.document_mask:
        batch["position_ids"] = np.tile(np.arange(plan.seq_len), (rows, 1))
        batch["document_ids"] = np.zeros((rows, plan.seq_len), np.int64)
    return batch
