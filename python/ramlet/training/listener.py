"""Callbacks of a run, for the command that shows its progress."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Listener:
    """Does nothing; override what you need."""

    def noted(self, line: str) -> None:
        """A sentence for the user to know."""

    def warned(self, line: str) -> None:
        """A sentence for the user to act on."""

    def planned(self, plan: Any, resumed_at: int) -> None:
        """The plan, after the probe."""

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        """After every step."""

    def expected(self, seconds: float) -> None:
        """The remaining time of the run, with its evaluations; before `stepped`."""

    def stopping(self) -> None:
        """Ctrl-C was pressed: the run will save a checkpoint and stop."""

    def evaluating(self, name: str, done: int, total: int) -> None:
        """Progress of an evaluation in tokens."""

    def evaluated(self, step: int, scores: Mapping[str, Any], forgotten: Mapping[str, float]) -> None:
        """After every evaluation: scores by set, and how much each loss rose since the start."""

    def averaged(self, count: int, scores: Mapping[str, Any]) -> None:
        """At the end: scores of the average of the weights, by set, and of how many moments it is."""

    def sampled(self, step: int, text: str) -> None:
        """After every sample."""

    def saved(self, step: int, path: Path) -> None:
        """After every checkpoint."""
