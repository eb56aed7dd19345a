"""Who is told what happens in a run: the command that draws it, or no one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Listener"]


class Listener:
    """Hears nothing; a command overrides what it shows."""

    def noted(self, line: str) -> None:
        """Something to know, in a sentence."""

    def warned(self, line: str) -> None:
        """Something to act on, in a sentence."""

    def planned(self, plan: Any, resumed_at: int) -> None:
        """The plan, after the probe."""

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        """After every step."""

    def expected(self, seconds: float) -> None:
        """How long the run still takes, with its evaluations; before `stepped`."""

    def stopping(self) -> None:
        """Ctrl-C was heard, wherever the run is: a checkpoint comes, and then its end."""

    def evaluating(self, name: str, done: int, total: int) -> None:
        """So many tokens of a set are evaluated."""

    def evaluated(self, step: int, scores: Mapping[str, Any], forgotten: Mapping[str, float]) -> None:
        """After every evaluation: scores by the name of the set, and how far its loss rose."""

    def sampled(self, step: int, text: str) -> None:
        """A sample of what the model writes."""

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint."""
