"""The remaining time of a run: its steps, and the evaluations, samples and checkpoints between them.

pace = Pace(steps=2000, every={"eval": 200, "sample": 400, "save": 200})
pace.stepped(1.7)
pace.paused("eval", 12.0)
pace.left(step=400)                 # seconds
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

RECENT = 32
"""The mean of this many last steps predicts the next ones."""


def times_left(step: int, steps: int, every: int) -> int:
    """How often something is still done that is due every `every` steps and at the end; 0 means only at the end."""
    regular = steps // every - step // every if every else 0
    at_the_end = step < steps and (not every or steps % every != 0)
    return regular + at_the_end


class Pace:
    """Estimates from the last steps and the last pause of each kind."""

    def __init__(self, steps: int, every: Mapping[str, int], guessed: Mapping[str, float] | None = None) -> None:
        """`guessed` is the length of a pause in steps, until one of its kind was measured."""
        self._steps = steps
        self._every = dict(every)
        self._guessed = dict(guessed or {})
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seconds: dict[str, float] = {}

    def stepped(self, seconds: float) -> None:
        self._recent.append(seconds)

    def paused(self, kind: str, seconds: float) -> None:
        self._seconds[kind] = seconds

    def left(self, step: int) -> float | None:
        """Seconds; None before the first step."""
        if not self._recent:
            return None
        mean = sum(self._recent) / len(self._recent)
        between = sum(
            times_left(step, self._steps, every) * self._seconds.get(kind, self._guessed.get(kind, 0.0) * mean)
            for kind, every in self._every.items()
        )
        return (self._steps - step) * mean + between
