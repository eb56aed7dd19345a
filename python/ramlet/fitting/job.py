"""A run of `ramlet.fit` with all of its settings resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramlet.errors import SettingsError, option
from ramlet.settings.names import check_names
from ramlet.training.job import MOST_WARMUP, noted_number
from ramlet.training.recipe import default_rate
from ramlet.training.schedule import Schedule
from ramlet.training.settings import EVALUATIONS, RunSettings

SETTINGS = (
    *("gradient_accumulation_steps", "max_steps", "epochs", "lr", "min_lr", "warmup", "schedule", "decay"),
    *("weight_decay", "beta1", "beta2", "eps", "clip", "seed", "micro_batch", "recompute", "eval_every"),
    *("checkpoint_every", "keep", "log_every", "spike", "tensorboard", "wandb"),
)
"""Those of `ramlet train` that a module has too, with the same meaning and default; but `spike` is off, because a loss
may have any scale."""
SCHEDULE, DECAY = "wsd", 0.4


def settings_of(given: dict[str, Any], others: tuple[str, ...]) -> RunSettings:
    """The settings by name; `others` are the function's own arguments, for suggestions."""
    check_names(given, [*SETTINGS, *others])
    return RunSettings(**{"spike": 0.0, "sample_every": 0, **given})


@dataclass(frozen=True)
class FitJob:
    settings: RunSettings
    steps: int
    schedule: Schedule
    eval_every: int
    checkpoint_every: int
    sample_every: int = 0

    def described(self) -> dict[str, Any]:
        """For settings.yaml."""
        schedule = self.schedule
        return {
            "steps": self.steps,
            "lr": schedule.peak,
            "min_lr": schedule.floor,
            "warmup": schedule.warmup,
            "schedule": schedule.kind,
            "decay": schedule.decay,
            "eval_every": self.eval_every,
        }


def resolve(
    settings: RunSettings,
    steps: int,
    *,
    parameters: int,
    optimizer: Any,
    rate: float | None,
    begun: Mapping[str, Any] | None = None,
) -> FitJob:
    """The defaults that depend on the length of the run; `rate` is that of the user's own optimizer.

    `begun` is what a resumed run noted: what was computed then stays, unless it is given now.
    """
    peak = settings.lr if settings.lr is not None else rate
    if peak is None:
        peak = default_rate(parameters, "muon" if optimizer == "muon" else "adamw")
    kind = settings.schedule or SCHEDULE
    floor = settings.min_lr
    if floor is None:
        floor = 0.0 if kind == "wsd" else peak / 10
    if floor > peak:
        raise SettingsError(f"{option('min_lr', floor)} is above the learning rate of {peak:g}: give a smaller one")
    warmup = min(MOST_WARMUP, math.ceil(steps / 20)) if settings.warmup is None else settings.warmup
    if begun is not None and settings.warmup is None:
        warmup = noted_number(begun, "warmup", warmup)
    if begun is not None and settings.min_lr is None and (begun.get("lr"), begun.get("schedule")) == (peak, kind):
        floor = noted_number(begun, "min_lr", floor)
    tenth = math.ceil(steps / EVALUATIONS)
    eval_every = tenth if settings.eval_every is None else settings.eval_every
    return FitJob(
        settings=settings,
        steps=steps,
        schedule=Schedule(peak, floor, warmup, steps, kind, DECAY if settings.decay is None else settings.decay),
        eval_every=eval_every,
        checkpoint_every=(eval_every or tenth) if settings.checkpoint_every is None else settings.checkpoint_every,
    )
