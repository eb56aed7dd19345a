"""Dividing the batches of a loader into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ramlet.engines.torch.modules import batches
from ramlet.engines.torch.modules.losses import Loss
from ramlet.engines.torch.modules.plan import ModulePlan
from ramlet.errors import BudgetError, option


@dataclass
class Piece:
    """A micro-batch."""

    batch: Any
    number: int
    """Of its first sample, since the beginning of the run."""
    expected: float
    """What it should count: targets, by their class weights if there are any, or samples; 0 if all are ignored."""
    last_of_step: bool
    trained: float = 0.0
    """What it counted, once it was learned from."""


def divided(batch: Any, plan: ModulePlan, loss: Loss, *, number: int, last_of_step: bool) -> Iterator[Piece]:
    """The micro-batches of a batch that is already one of tensors."""
    for start, stop in parts_of(batch, plan):
        part = batches.sliced(batch, start, stop)
        yield Piece(part, number + start, loss.count(part), last_of_step and stop == batches.rows(batch))


def first_counted(batch: Any, loss: Loss) -> int:
    """The first sample with a target that is not ignored; without one there is no mean."""
    samples = range(batches.rows(batch))
    return next((number for number in samples if loss.count(batches.sliced(batch, number, number + 1))), 0)


def parts_of(batch: Any, plan: ModulePlan) -> Iterator[tuple[int, int]]:
    """Where its micro-batches begin and end: as few as possible, of nearly equal sizes."""
    rows = batches.rows(batch)
    count = math.ceil(rows / rows_at_once(batch, plan))
    for number in range(count):
        yield rows * number // count, rows * (number + 1) // count


def rows_at_once(batch: Any, plan: ModulePlan) -> int:
    """The planned micro-batch, or less if the samples of this batch are larger than those that were measured.

    Attention may need memory by the square of the length, so that much less.
    """
    larger = batches.row_size(batch) / plan.row_size
    if larger <= 1.0:
        return plan.micro_batch
    most = int(plan.micro_batch / larger**2)
    # What was left of the budget, and what a sample of the measured size takes.
    if most < 1:
        spare = plan.budget - plan.peak
        if plan.parts["activations"] / plan.micro_batch * larger**2 > plan.parts["activations"] + spare:
            raise BudgetError(
                f"a batch has samples {larger:.1f} times as large as the batches that were measured before the first "
                f"step, and one of them may not fit: give more {option('memory')}, or a loader whose first batches "
                "have the longest samples"
            )
    return max(1, most)
