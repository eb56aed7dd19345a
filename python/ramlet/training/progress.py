"""The progress of a run, as checkpoints store it, and which of its models is the best so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramlet.training.evaluate import Score

EVAL, SAMPLE, AVERAGE, SAVE = "eval", "sample", "average", "save"
"""The tasks between steps, in this order."""
_LATER = ("owed", "evaluated", "best_tokens", "best_scores", "sets")
"""Older checkpoints do not have these."""


@dataclass
class Progress:
    """The progress of a run; stored in checkpoints."""

    step: int = 0
    tokens: int = 0
    """Tokens with a loss."""
    seconds: float = 0.0
    loss: float | None = None
    best: int | None = None
    """The step with the lowest validation loss."""
    best_loss: float | None = None
    best_tokens: int | None = None
    """How many tokens that evaluation had: only those of the same size are compared."""
    best_scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    """What is evaluated: the fingerprint of each set's data."""
    evaluated: int | None = None
    """The step of the last evaluation; its scores are in `scores`."""
    before: dict[str, float] = field(default_factory=dict)
    """The loss on each set before the first step, if the run started from another model."""
    recent: list[float] = field(default_factory=list)
    """The last losses, to detect a spike."""
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    owed: list[str] = field(default_factory=list)
    """Tasks after this step that Ctrl-C interrupted: done first when the run resumes."""

    def evaluated_as(self, scores: Mapping[str, Score], judged: Score | None) -> None:
        """Notes the scores of this step; `judged` is what models are compared by, None if by nothing."""
        self.scores = {name: score.to_dict() for name, score in scores.items()}
        if self.step == 0:
            self.before = {name: score["loss"] for name, score in self.scores.items()}
            return
        self.evaluated = self.step
        if judged is None:
            return
        known = self.best_loss is not None and math.isfinite(self.best_loss)
        compared = known and self.best_tokens in (None, judged.tokens)
        if not compared or self.best_loss is None or judged.loss < self.best_loss:
            self.best, self.best_loss, self.best_tokens = self.step, judged.loss, judged.tokens
            self.best_scores = self.scores

    def evaluates(self, sets: Mapping[str, str], judging: Callable[[Iterable[str]], list[str]]) -> None:
        """Notes the sets from here on; scores on others than before are not compared with those.

        `judging` returns the names of those that models are compared by.
        """
        if self.sets:
            before, now = ([(name, known[name]) for name in judging(known)] for known in (self.sets, sets))
            if before != now:
                self.forget_best()
            same = {name for name, data in sets.items() if self.sets.get(name) == data}
            self.before = {name: loss for name, loss in self.before.items() if name in same}
            self.scores = {name: score for name, score in self.scores.items() if name in same}
            self.best_scores = {name: score for name, score in self.best_scores.items() if name in same}
        self.sets = dict(sets)

    def forget_best(self) -> None:
        """Its checkpoint is gone, or what made it the best."""
        self.best = self.best_loss = self.best_tokens = None
        self.best_scores = {}

    @property
    def model_step(self) -> int:
        """The step of the model to use: the best one if the model got worse since, else the last."""
        if self.best is not None and self.evaluated is not None and self.evaluated > self.best:
            return self.best
        return self.step

    def rises(self, scores: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """How far the losses of these scores are above those before the first step."""
        return {name: round(scores[name]["loss"] - loss, 6) for name, loss in self.before.items() if name in scores}

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """From a checkpoint; ValueError names what is missing or invalid."""
        kinds: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(("step", "tokens", "best", "best_tokens", "evaluated"), (int,)),
            **dict.fromkeys(("seconds", "loss", "best_loss"), (int, float)),
            **dict.fromkeys(("before", "scores", "best_scores", "sets"), (dict,)),
            **dict.fromkeys(("recent", "owed"), (list,)),
        }
        parts: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(("before", "recent"), (int, float)),
            **dict.fromkeys(("scores", "best_scores"), (dict,)),
            **dict.fromkeys(("owed", "sets"), (str,)),
        }
        found: dict[str, Any] = {}
        for each in fields(cls):
            if each.name not in values:
                if each.name in _LATER:
                    continue
                raise ValueError(f"progress.{each.name} is missing")
            value, empty = values[each.name], each.default is None
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            wanted = parts.get(each.name)
            good = (value is None and empty) or (isinstance(value, kinds[each.name]) and not isinstance(value, bool))
            if not good or (wanted and not all(isinstance(one, wanted) for one in inside)):
                raise ValueError(f"progress.{each.name} is invalid")
            if each.name in ("scores", "best_scores") and not all(map(_is_score, inside)):
                raise ValueError(f"progress.{each.name} is invalid")
            found[each.name] = value
        if found["step"] < 1 or found["tokens"] < 0 or not set(found.get("owed", ())) <= {EVAL, SAMPLE}:
            raise ValueError("progress is invalid")
        return cls(**found)


def _is_score(values: Mapping[str, Any]) -> bool:
    """What `Score.to_dict` makes; one of samples (fitting/run.py) has no perplexity."""
    number = (int, float)
    kinds: dict[str, Any] = {"loss": number, "perplexity": number, "bits_per_byte": (*number, NoneType), "tokens": int}
    if "samples" in values:
        kinds = {"loss": number, "samples": int}
    return all(name in values and isinstance(values[name], kind) for name, kind in kinds.items())
