"""Callbacks of a run, for whoever shows its progress."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ramlet.engines.plan import Plan
    from ramlet.training.evaluate import Score


class Listener(Protocol):
    """What `ramlet.train(..., listener=...)` calls: a subclass overrides what it needs, and the rest does nothing.

        class Losses(ramlet.Listener):
            def stepped(self, step, steps, loss, tokens_per_second, memory):
                print(step, loss)

    Any object with these methods will do. They are called between steps, so what they take is added to the run.
    """

    # Each has a `return`: type checkers take a method with a docstring alone for an abstract one.

    def noted(self, line: str) -> None:
        """A sentence for the user to know."""
        return

    def warned(self, line: str) -> None:
        """A sentence for the user to act on."""
        return

    def planned(self, plan: Plan, resumed_at: int) -> None:
        """The plan, after the probe, and the step from which the run continues."""
        return

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        """After every step; `memory` in bytes is that of the process tree on a CPU, of the device on a GPU."""
        return

    def expected(self, seconds: float) -> None:
        """The remaining time of the run, with its evaluations; before `stepped`."""
        return

    def stopping(self) -> None:
        """Ctrl-C was pressed: the run will save a checkpoint and stop."""
        return

    def evaluating(self, name: str, done: int, total: int) -> None:
        """Progress of an evaluation in tokens."""
        return

    def evaluated(self, step: int, scores: Mapping[str, Score], forgotten: Mapping[str, float]) -> None:
        """After every evaluation: scores by set, and how much each loss rose since the start."""
        return

    def averaged(self, count: int, scores: Mapping[str, Score]) -> None:
        """At the end: scores of the average of the weights, by set, and of how many moments it is."""
        return

    def sampled(self, step: int, text: str) -> None:
        """After every sample."""
        return

    def saved(self, step: int, path: Path) -> None:
        """After every checkpoint."""
        return


class Silent(Listener):
    """Shows nothing."""
