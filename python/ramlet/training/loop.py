"""The steps of a run, and what is done between them: evaluate, sample, save, stop.

    run_steps(run)

Interrupted at any moment, the same call goes on from the last checkpoint, and on a CPU ends with the same bits as a
run that was never interrupted: the order of the data, the samples and the rounding follow from the seed and the step
alone, and the plan is kept with the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ramlet.budget import Meter
from ramlet.errors import Interrupted, TrainingStopped
from ramlet.training import checkpoint
from ramlet.training.device import Device
from ramlet.training.evaluate import EvalSet, Score, evaluate_model
from ramlet.training.job import Job
from ramlet.training.journal import Journal
from ramlet.training.listener import Listener
from ramlet.training.plan import Plan
from ramlet.training.ranks import Ranks
from ramlet.training.saver import Saver
from ramlet.training.signals import StopSignals
from ramlet.training.step import Trainee

__all__ = ["Progress", "Run", "run_steps"]

SPIKE_WINDOW = 64


@dataclass
class Progress:
    """Where a run stands: all of it goes into a checkpoint."""

    step: int = 0
    tokens: int = 0
    """Labels learned from."""
    seconds: float = 0.0
    loss: float | None = None
    best: int | None = None
    """The step with the lowest validation loss."""
    best_loss: float | None = None
    before: dict[str, float] = field(default_factory=dict)
    """Each set's loss before the first step, where the run began from another model."""
    recent: list[float] = field(default_factory=list)
    """The last losses, to know a spike by."""
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Run:
    """All that the steps need; `start.py` makes it."""

    path: Path
    job: Job
    plan: Plan
    trainee: Trainee
    loader: Any
    evals: list[EvalSet]
    journal: Journal
    listener: Listener
    device: Device
    ranks: Ranks
    meter: Meter
    progress: Progress
    saver: Saver
    settled: float = 0.0
    """When the last step was done, or what comes between steps."""
    sampler: Any = None
    """Model and step -> a text; None where none is wanted."""


def run_steps(run: Run) -> None:
    """From where the run stands to its end; every way out leaves a checkpoint to go on from."""
    with StopSignals() as signals:
        if run.progress.step == 0:
            _evaluate(run, first=True)
            _sample(run)
        batches = iter(run.loader)
        began = time.monotonic() - run.progress.seconds
        run.settled = time.monotonic()
        pending: _Figures | None = None
        while run.progress.step < run.job.steps:
            figures = _one_step(run, batches)
            run.progress.seconds = time.monotonic() - began
            # Of a GPU the figures are read a step later, when they are long there: it never waits for Python.
            if pending is not None:
                _settle(run, pending)
            pending = figures
            stopping = run.ranks.any(signals.asked)
            due = _due(run, stopping)
            if due or run.device.kind == "cpu":
                _settle(run, pending)
                pending = None
            if due:
                _attend(run, stopping)
                began = time.monotonic() - run.progress.seconds
                run.settled = time.monotonic()
            if stopping and run.progress.step < run.job.steps:
                raise Interrupted(
                    f"interrupted at step {run.progress.step:,} of {run.job.steps:,}, and saved: "
                    "run the same command to go on"
                )


@dataclass
class _Figures:
    """Of one step, as they are on the device."""

    step: int
    tokens: int
    """Learned from in this step; `so_far` counts all."""
    so_far: int
    rate: float
    loss: torch.Tensor
    length: torch.Tensor


def _one_step(run: Run, batches: Iterator[Any]) -> _Figures:
    """Learns from one global batch, this rank's share of it, and steps."""
    assumed = run.plan.batch_size * run.plan.seq_len
    total = torch.zeros((), device=run.device.name)
    learned = 0
    while True:
        batch = next(batches)
        learned += int((batch["targets"] >= 0).sum())
        total += run.trainee.learn(batch, 1.0 / assumed)
        if batch.last_of_step:
            break
    counted = torch.tensor(float(learned), device=run.device.name) if run.ranks.world > 1 else None
    if counted is not None:
        run.ranks.sum(total, counted)
        learned = int(counted.item())
    if not learned:
        learned = 1  # nothing but padding: gradients are 0 whatever they are divided by
    rate = run.job.schedule(run.progress.step)
    length = run.trainee.update(rate, run.job.settings.clip, assumed / learned)
    run.progress.step += 1
    run.progress.tokens += learned
    return _Figures(run.progress.step, learned, run.progress.tokens, rate, total / learned, length)


def _settle(run: Run, figures: _Figures) -> None:
    """Reads a step's figures, tells of them, and ends the run where they say that it went wrong."""
    loss, length = float(figures.loss), float(figures.length)  # a GPU has done the step by then
    progress = run.progress
    now = time.monotonic()
    speed = figures.tokens / max(1e-9, now - run.settled)
    run.settled = now
    overflow = not math.isfinite(length) and run.trainee.overflow_is_normal
    if not overflow:
        _check_health(run, figures.step, loss, length)
        progress.recent = [*progress.recent, loss][-SPIKE_WINDOW:]
        progress.loss = loss
    memory = run.device.current(run.meter)
    if figures.step % run.job.settings.log_every == 0 or figures.step in (1, run.job.steps):
        run.journal.write(
            figures.step,
            tokens=figures.so_far,
            loss=round(loss, 6),
            lr=figures.rate,
            grad_norm=round(length, 6) if math.isfinite(length) else None,
            tokens_per_second=round(speed),
            memory=memory,
            seconds=round(progress.seconds, 3),
        )
    run.listener.stepped(figures.step, run.job.steps, loss, speed, memory)


def _check_health(run: Run, step: int, loss: float, length: float) -> None:
    recent = run.progress.recent
    usual = sum(recent) / len(recent) if recent else loss
    if math.isfinite(loss) and math.isfinite(length):
        spiked = run.job.settings.spike and len(recent) >= SPIKE_WINDOW and loss > usual + run.job.settings.spike
        if not spiked:
            return
        what = f"the loss jumped to {loss:.3f} from about {usual:.3f}"
        check = ", or without this check by --spike 0"
    else:
        what = "the loss is no number any more" if not math.isfinite(loss) else "the gradients are no numbers any more"
        check = ""
    good = checkpoint.latest(run.path)
    way = (
        f"the last good checkpoint is {good}: go on from it with a lower --lr (ramlet train --init-from)"
        if good
        else "there is no checkpoint before it: run it again with a lower --lr"
    )
    raise TrainingStopped(f"{what} at step {step:,}, so the run was stopped; {way}{check}")


def _due(run: Run, stopping: bool) -> bool:
    step = run.progress.step
    return (
        stopping
        or step == run.job.steps
        or any(
            every and step % every == 0
            for every in (run.job.eval_every, run.job.sample_every, run.job.checkpoint_every)
        )
    )


def _attend(run: Run, stopping: bool) -> None:
    """What is done between steps: evaluate, sample, save."""
    step, last = run.progress.step, run.progress.step == run.job.steps
    if last or (run.job.eval_every and step % run.job.eval_every == 0):
        _evaluate(run)
    if run.job.sample_every and (last or step % run.job.sample_every == 0):
        _sample(run)
    best = run.ranks.any(run.progress.best == step)  # known to the first alone, and all save or none
    if last or stopping or best or (run.job.checkpoint_every and step % run.job.checkpoint_every == 0):
        _save(run)


def _save(run: Run) -> None:
    """A checkpoint of the run as it stands."""
    if run.ranks.first:
        state = {
            "progress": run.progress.to_dict(),
            "data": run.loader.state(),
            "journal": run.journal.position,
        }
        snapshot = checkpoint.Snapshot.of(run.trainee, run.progress.step, state)
        run.saver.save(snapshot, run.progress.best, run.listener.saved)
    run.ranks.wait()


def _evaluate(run: Run, *, first: bool = False) -> None:
    """All sets; the first score of a set that another model was trained on is what forgetting is measured from."""
    if not run.evals or (first and not run.job.settings.init_from):
        return
    began = time.monotonic()
    scores: dict[str, Score] = {}
    if run.ranks.first:
        scores = {wanted.name: evaluate_model(run.trainee.model, wanted) for wanted in run.evals}
        progress = run.progress
        if first:
            progress.before = {name: score.loss for name, score in scores.items()}
        forgotten = {name: scores[name].loss - loss for name, loss in progress.before.items() if name in scores}
        progress.scores = {name: score.to_dict() for name, score in scores.items()}
        judged = scores.get("val") or next(iter(scores.values()))
        if not first and (progress.best_loss is None or judged.loss < progress.best_loss):
            progress.best, progress.best_loss = progress.step, judged.loss
        rounded = {name: round(value, 6) for name, value in forgotten.items()}
        run.journal.write(progress.step, eval=progress.scores, **({"forgetting": rounded} if rounded else {}))
        run.listener.evaluated(progress.step, scores, forgotten)
        for name, rise in forgotten.items():
            if rise > run.job.settings.forgetting and name != "val" and not name.startswith("val_"):
                run.listener.warned(
                    f"the model is forgetting {name}: its loss is {scores[name].loss:.3f}, "
                    f"{rise:.3f} above what it was before (a lower --lr, or some of that data mixed in, helps)"
                )
    run.ranks.wait()
    run.progress.seconds += time.monotonic() - began


def _sample(run: Run) -> None:
    if run.sampler is None or not run.ranks.first:
        return
    text = run.sampler(run.trainee.model, run.progress.step)
    run.journal.write(run.progress.step, sample=text)
    run.listener.sampled(run.progress.step, text)
