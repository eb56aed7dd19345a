"""Everything that the training loop needs, in one object.

    run = Run(folder=folder, job=job, plan=plan, trainee=trainee, ...)
    run_steps(run)                                      # loop.py

A `Trainer` makes one for a model of ramlet's own, `ramlet.fit` for any module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ramlet.engines import Engine, Learner, Ranks
from ramlet.errors import option
from ramlet.runtime.meter import Meter
from ramlet.training.average import Averaging
from ramlet.training.evaluate import Score
from ramlet.training.journal import Journal
from ramlet.training.kept import Averaged
from ramlet.training.listener import Listener
from ramlet.training.pace import Pace
from ramlet.training.progress import Progress
from ramlet.training.run_folder import RunFolder
from ramlet.training.saver import Saver
from ramlet.training.schedule import Schedule
from ramlet.training.settings import RunSettings
from ramlet.training.signals import StopSignals


class Steps(Protocol):
    """How many steps, at which rate, and what is done between them: a `Job`, or that of a module (fitting/)."""

    @property
    def settings(self) -> RunSettings: ...
    @property
    def steps(self) -> int: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def sample_every(self) -> int: ...
    @property
    def checkpoint_every(self) -> int: ...


class Planned(Protocol):
    """What a run needs of a plan."""

    @property
    def step_tokens(self) -> int:
        """What a step has, unless targets are ignored."""

    @property
    def shard(self) -> str:
        """What the ranks divide among them, as in `Choice`."""

    def calls(self, sequences: int) -> int:
        """How often every rank learns in a step of this many sequences; 0 if that does not matter."""

    @property
    def peak(self) -> int: ...
    @property
    def parts(self) -> dict[str, int]: ...


@dataclass
class Run:
    """One run: what it is, what it needs, and how far it is."""

    folder: RunFolder
    job: Steps
    plan: Planned
    trainee: Learner
    loader: Any
    evals: list[Any]
    journal: Journal
    listener: Listener
    engine: Engine
    meter: Meter
    progress: Progress
    saver: Saver
    signals: StopSignals
    pace: Pace
    sampler: Any = None
    """Model and step -> a text; None without samples."""
    mark: Any = None
    """When the last step, or task between steps, was done on the device."""
    warned_of: set[str] = field(default_factory=set)
    """Sets with a warning that the model is forgetting them: it is given once."""
    broken: str = ""
    """The evaluation set on which the loss became NaN or infinite."""
    averaging: Averaging | None = None
    averaged: Averaged | None = None
    """The average at the end, which the trainee then has instead of its own weights."""
    evaluate: Callable[..., Score] | None = None
    """Instead of `evaluate_model`, for sets that are no `EvalSet`."""
    unit: str = "tokens"
    """What is counted."""
    keeps_begun_steps: bool = False
    """Whether a step leaves something behind before its update, as a module with buffers or random numbers does."""
    remedy: str = f"continue from it with {option('init_from')} and a lower {option('lr')}"
    """What to do with the last good checkpoint of a run that diverged."""

    @property
    def ranks(self) -> Ranks:
        return self.engine.ranks

    @property
    def repeats_steps(self) -> bool:
        """Whether a step that was not finished can be made again. Ranks would have to agree on it in every step."""
        return self.ranks.world == 1 and not self.keeps_begun_steps

    @property
    def path(self) -> Path:
        """Where its files currently are."""
        return self.folder.place

    @property
    def evaluates_together(self) -> bool:
        """Whether no rank has all weights, so that a forward pass needs all ranks."""
        return self.plan.shard == "weights"

    @property
    def takes_part(self) -> bool:
        """Whether this rank evaluates and samples. If all do, each has the same results."""
        return self.ranks.first or self.evaluates_together
