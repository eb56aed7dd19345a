"""Which model of a run is kept as RUN/model.safetensors, and from which checkpoint a resumed run continues.

The model is the one with the lowest validation loss: that of a checkpoint, because the best is always among them, or
the average of the weights (average.py) if that is better. Without a validation loss it is the last one, or the average
if the run was asked for one.

A run that is resumed continues from its last checkpoint. With a larger number of steps and the schedule wsd it
continues from the last one before the learning rate decayed: the steps after it are trained again, with the rate of the
longer schedule. Checkpoints know the schedule that they were made with, so this does not depend on when a run was
killed: those of the shorter run are skipped until the first checkpoint of the longer one has replaced them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramlet.engines import Learner
from ramlet.model.tensor_file import write_tensors
from ramlet.training import checkpoint
from ramlet.training.evaluate import Score
from ramlet.training.progress import Progress
from ramlet.training.run_files import WEIGHTS, link
from ramlet.training.schedule import Schedule


@dataclass(frozen=True)
class Averaged:
    """The average of the weights, which the trainee has at the end of a run."""

    count: int
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    judged: Score | None = None


@dataclass(frozen=True)
class Kept:
    """The model of a run."""

    step: int
    averaged: int
    """Of how many moments it is the average; 0 if it is the model of one step."""
    scores: dict[str, dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "averaged": self.averaged}


def choose(run: Path, progress: Progress, averaged: Averaged | None) -> Kept:
    """The best model of a run that has ended."""
    if averaged is not None and _is_better(averaged.judged, progress):
        return Kept(progress.step, averaged.count, averaged.scores)
    step = progress.model_step
    if step == progress.step or not (checkpoint.path_of(run, step) / WEIGHTS).is_file():
        return Kept(progress.step, 0, progress.scores)
    return Kept(step, 0, progress.best_scores)


def _is_better(judged: Score | None, progress: Progress) -> bool:
    return judged is None or progress.best_loss is None or judged.loss < progress.best_loss


def write(run: Path, kept: Kept, trainee: Learner) -> None:
    """Puts the model in its place; `trainee` has the average."""
    if kept.averaged:
        write_tensors(run / WEIGHTS, trainee.weights(), {"format": "pt"})
    else:
        link(checkpoint.path_of(run, kept.step) / WEIGHTS, run / WEIGHTS)


def continues_from(run: Path, schedule: Schedule) -> tuple[Path | None, str]:
    """The checkpoint to resume from, and a note for the user if it is not simply the last."""
    found = checkpoint.checkpoints(run)
    if not found:
        return None, ""
    last, path = found[-1]
    if not _has_decayed(checkpoint.read_state(path), schedule):
        return path, ""
    for step, earlier in reversed(found[:-1]):
        if not _has_decayed(checkpoint.read_state(earlier), schedule):
            return earlier, f"this run is longer: continuing from step {step:,}, before the learning rate decayed"
    return path, (
        f"this run is longer: continuing from step {last:,}, where the learning rate had decayed already, because "
        "there is no earlier checkpoint"
    )


def _has_decayed(state: Mapping[str, Any], schedule: Schedule) -> bool:
    """Whether a checkpoint is from the decay of a shorter run."""
    old = checkpoint.schedule_of(state)
    if old is None or old.stable_until is None or schedule.kind not in ("wsd", "constant"):
        return False
    return state["step"] > old.stable_until and schedule.steps > old.steps
