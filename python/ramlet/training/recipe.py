"""The recipe: how a run learns if its settings do not say. Every rule is measured: docs/design/recipe.md.

    recipe = recipe_for(shape, step_tokens=8192, continued=False).given(settings)
    recipe.optimizer, recipe.schedule, recipe.decay

A run keeps the recipe that it was begun with, which settings.yaml has: better defaults of a later version do not change
it. Runs from before there were recipes have `BEFORE`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ramlet.model.shape import Shape
from ramlet.settings.declared import declared
from ramlet.training.settings import RunSettings

QK_NORM = True
"""For new models."""

CONTINUED = 0.1
"""The fraction of the from-scratch rate for a model that is already trained (benchmarks/continued_lr.py)."""

TOKENS_PER_WIDTH = 2
"""Muon's update costs as much as learning from three to four times as many tokens as the model is wide. It is worth
that even if a step has fewer: with 1,024 tokens and a width of 320, 2,000 steps learn more than 4,000 of AdamW.
"""


@dataclass(frozen=True)
class Recipe:
    optimizer: str
    """muon or adamw; the planner may choose its 8-bit form."""
    schedule: str = "wsd"
    decay: float = 0.4

    def given(self, settings: RunSettings) -> Recipe:
        """What the settings name, and this recipe where they do not."""
        named: dict[str, Any] = {"schedule": settings.schedule, "decay": settings.decay}
        if settings.optimizer != "auto":
            named["optimizer"] = settings.optimizer.removesuffix("8bit")
        return replace(self, **{name: value for name, value in named.items() if value is not None})


BEFORE = Recipe("adamw", schedule="cosine", decay=0.4)
_FORMER_DEFAULTS = {"schedule": "cosine"}
"""Of settings that are None now if they are not given."""


def recipe_for(shape: Shape, *, step_tokens: int, continued: bool) -> Recipe:
    """`continued`: the model is already trained, most likely with AdamW; rates for that are measured with it alone."""
    pays = step_tokens >= TOKENS_PER_WIDTH * shape.width
    return Recipe("muon" if pays and not continued else "adamw")


def default_rate(parameters: int, optimizer: str, *, continued: bool = False) -> float:
    """Smaller models tolerate higher rates. With AdamW: a power law that fits GPT-3's table (Brown et al., 2020: 6e-4
    for 125M, 2e-4 for 1.3B, 1e-4 for 13B) and our own measurements of small models (benchmarks/learning_rate.py). With
    Muon it depends less on the size (docs/design/recipe.md). A model that is already trained (`continued`) gets a
    fraction of it: the full rate makes it forget more than it learns."""
    if optimizer == "muon":
        rate = min(1e-2, 4e-3 * math.pow(124e6 / parameters, 0.16))
    else:
        rate = min(2.5e-3, 6e-4 * math.pow(125e6 / parameters, 0.44))
    return rate * (CONTINUED if continued else 1.0)


def step_flops(shape: Shape, tokens: int, seq_len: int) -> float:
    """Operations of a step with this many tokens, by default; AdamW's update has too few to count."""
    learning = shape.step_flops(tokens, seq_len)
    if recipe_for(shape, step_tokens=tokens, continued=False).optimizer == "adamw":
        return learning
    sizes = [sorted(size) for fused in shape.layer_matrices for size in fused]
    # As on a CPU (rust/kernels/muon.rs).
    products = sum(10.0 * short**3 + 6.0 * short**2 * long for short, long in sizes)
    return learning + shape.layers * products


def recipe_of(noted: Mapping[str, Any]) -> Recipe:
    """That of a run, from its settings.yaml."""
    found = noted["job"].get("recipe")
    if found is None:
        former = {name: noted["settings"].get(name) for name in ("schedule", "decay")}
        return replace(BEFORE, **{name: value for name, value in former.items() if value is not None})
    return Recipe(**{name: found[name] for name in vars(BEFORE)})


def as_recorded_now(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The decisive settings that an earlier version recorded, as this one would record them."""
    later = {name: each.default for name, each in declared(RunSettings).items() if each.decides and each.later}
    found = {**later, **recorded}
    if not later.keys() <= recorded.keys():
        for name, former in _FORMER_DEFAULTS.items():
            found[name] = None if found.get(name) == former else found.get(name)
    return found
