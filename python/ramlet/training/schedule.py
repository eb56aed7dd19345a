"""The learning rate schedule: linear warmup, then decay; `wsd` stays at the peak and decays linearly at the end.

>>> rate = Schedule(peak=1.0, floor=0.1, warmup=10, steps=110, kind="linear")
>>> rate(0), rate(9), rate(60), rate(110)
(0.1, 1.0, 0.55, 0.1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Schedule:
    peak: float
    floor: float
    warmup: int
    steps: int
    kind: str = "cosine"
    decay: float = 0.4
    """Of wsd: the fraction of the steps in which it decays."""

    @classmethod
    def is_valid(cls, values: Any) -> bool:
        """Whether `cls(**values)` is a schedule."""
        if not isinstance(values, dict) or set(values) != {each.name for each in fields(cls)}:
            return False
        numbers = [value for name, value in values.items() if name != "kind"]
        whole = all(isinstance(values[name], int) for name in ("warmup", "steps"))
        return whole and all(isinstance(n, (int, float)) and math.isfinite(n) and n >= 0 for n in numbers)

    @property
    def stable_until(self) -> int | None:
        """The number of steps before the learning rate decays, for schedules that a longer run can go back to."""
        return self.decay_start if self.kind == "wsd" and 0 < self.decay_start < self.steps else None

    @property
    def decay_start(self) -> int:
        """The first step of the decay of wsd."""
        return max(self.warmup, self.steps - math.ceil(self.decay * self.steps))

    def __call__(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        start = self.decay_start if self.kind == "wsd" else self.warmup
        if step < start:
            return self.peak
        part = min(1.0, (step - start) / max(1, self.steps - start))
        height = 1 - part if self.kind in ("linear", "wsd") else 0.5 * (1 + math.cos(math.pi * part))
        return self.floor + (self.peak - self.floor) * height
