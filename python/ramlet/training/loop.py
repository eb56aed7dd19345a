"""The steps of a run, and what is done between them: evaluate, sample, save, stop.

    run_steps(run)

Interrupted at any moment, the same call goes on from the last checkpoint, and on a CPU ends with the same bits as a
run that was never interrupted: the order of the data, the samples and the rounding follow from the seed and the step
alone, and the plan is kept with the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ramlet.engines import Engine, Pending, Ranks, Trainee
from ramlet.engines.plan import Plan
from ramlet.errors import Interrupted, TrainingStopped, option
from ramlet.runtime.meter import Meter
from ramlet.training import checkpoint
from ramlet.training.evaluate import EvalSet, evaluate_model
from ramlet.training.job import Job
from ramlet.training.journal import Journal
from ramlet.training.listener import Listener
from ramlet.training.pace import Pace
from ramlet.training.run_folder import RunFolder
from ramlet.training.saver import Saver
from ramlet.training.signals import GaveUp, StopSignals

__all__ = ["Progress", "Run", "run_steps"]

SPIKE_WINDOW = 64
EVAL, SAMPLE, SAVE = "eval", "sample", "save"
"""What is done between steps, in this order."""


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
    owed: list[str] = field(default_factory=list)
    """What was due behind this step and given up for Ctrl-C: done first when the run goes on."""

    @property
    def rises(self) -> dict[str, float]:
        """How far each set's loss is above what it was before the first step."""
        scores = self.scores
        return {name: round(scores[name]["loss"] - loss, 6) for name, loss in self.before.items() if name in scores}

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """As a checkpoint has it; ValueError names what is missing or makes no sense."""
        kinds: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(("step", "tokens"), (int,)),
            **dict.fromkeys(("seconds", "loss", "best_loss"), (int, float)),
            "best": (int,),
            **dict.fromkeys(("before", "scores"), (dict,)),
            **dict.fromkeys(("recent", "owed"), (list,)),
        }
        found: dict[str, Any] = {}
        for each in fields(cls):
            if each.name not in values:
                if each.name == "owed":  # of a checkpoint that knows nothing of it
                    continue
                raise ValueError(f"progress.{each.name} is missing")
            value, empty = values[each.name], each.default is None
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            wanted = {"before": (int, float), "recent": (int, float), "scores": (dict,), "owed": (str,)}.get(each.name)
            good = (value is None and empty) or (isinstance(value, kinds[each.name]) and not isinstance(value, bool))
            if not good or (wanted and not all(isinstance(one, wanted) for one in inside)):
                raise ValueError(f"progress.{each.name} is not as it was written")
            found[each.name] = value
        if found["step"] < 1 or found["tokens"] < 0 or not set(found.get("owed", ())) <= {EVAL, SAMPLE}:
            raise ValueError("progress makes no sense")
        return cls(**found)


@dataclass
class Run:
    """All that the steps need; a `Trainer` makes it."""

    folder: RunFolder
    job: Job
    plan: Plan
    trainee: Trainee
    loader: Any
    evals: list[EvalSet]
    journal: Journal
    listener: Listener
    engine: Engine
    meter: Meter
    progress: Progress
    saver: Saver
    signals: StopSignals
    pace: Pace
    sampler: Any = None
    """Model and step -> a text; None where none is wanted."""
    mark: Any = None
    """When the last step was done, or what comes between steps, as the device has it."""
    warned_of: set[str] = field(default_factory=set)
    """Sets that the model was said to be forgetting: once, then only the figures tell."""

    @property
    def ranks(self) -> Ranks:
        return self.engine.ranks

    @property
    def path(self) -> Path:
        """Where its files are now."""
        return self.folder.place


def run_steps(run: Run) -> None:
    """From where the run stands to its end; every way out leaves a checkpoint to go on from."""
    progress = run.progress
    with run.signals as signals:
        if _attend(run, _owed_at_the_start(run)):
            raise _interrupted(run)
        batches = iter(run.loader)
        began = time.monotonic() - progress.seconds
        run.mark = run.engine.mark()
        pending: _Figures | None = None
        while progress.step < run.job.steps:
            figures = _one_step(run, batches)
            progress.seconds = time.monotonic() - began
            # Of a GPU the figures are read a step later, when they are long there: it never waits for Python.
            if pending is not None:
                _settle(run, pending)
            pending = figures
            if not run.engine.runs_behind:
                _settle(run, pending)
                pending = None
            stopping = run.ranks.any(signals.asked)
            jobs = _jobs(run)
            if jobs or stopping:
                if pending is not None:
                    _settle(run, pending)
                    pending = None
                stopping = _attend(run, jobs, stopping=stopping)
                began = time.monotonic() - progress.seconds
                run.mark = run.engine.mark()
            if stopping and (progress.step < run.job.steps or progress.owed):
                raise _interrupted(run)


def _interrupted(run: Run) -> Interrupted:
    step, steps = run.progress.step, run.job.steps
    if not step:
        return Interrupted("interrupted before the first step, with nothing to save: run the same command to begin")
    where = f"at step {step:,} of {steps:,}" if step < steps else f"behind the last of {steps:,} steps"
    return Interrupted(f"interrupted {where}, and saved: run the same command to go on")


@dataclass
class _Figures:
    """Of one step, as they are on the device."""

    step: int
    tokens: int
    """Learned from in this step; `so_far` counts all."""
    so_far: int
    rate: float
    loss: Pending
    grad_norm: Pending
    mark: Any
    """When it is done."""


def _one_step(run: Run, batches: Iterator[Any]) -> _Figures:
    """Learns from one global batch, this rank's share of it, and steps."""
    assumed = run.plan.batch_size * run.plan.seq_len
    total: Any = 0.0
    learned = 0
    while True:
        batch = next(batches)
        learned += int((batch["targets"] >= 0).sum())
        total = total + run.trainee.learn(batch, 1.0 / assumed)
        if batch.last_of_step:
            break
    total, learned = run.trainee.over_ranks(total, learned)
    if not learned:
        learned = 1  # nothing but padding: gradients are 0 whatever they are divided by
    rate = run.job.schedule(run.progress.step)
    grad_norm = run.trainee.update(rate, run.job.settings.clip, assumed / learned)
    run.progress.step += 1
    run.progress.tokens += learned
    so_far = run.progress.tokens
    return _Figures(run.progress.step, learned, so_far, rate, total / learned, grad_norm, run.engine.mark())


def _settle(run: Run, figures: _Figures) -> None:
    """Reads a step's figures, tells of them, and ends the run where they say that it went wrong."""
    loss, grad_norm = float(figures.loss), float(figures.grad_norm)  # a GPU has done the step by then
    progress = run.progress
    seconds = run.engine.seconds(run.mark, figures.mark)
    run.mark = figures.mark
    run.pace.stepped(seconds)
    speed = figures.tokens / max(1e-9, seconds)
    overflow = not math.isfinite(grad_norm) and run.trainee.overflow_is_normal
    if not overflow:
        _check_health(run, figures.step, loss, grad_norm)
        progress.recent = [*progress.recent, loss][-SPIKE_WINDOW:]
        progress.loss = loss
    memory = run.engine.current(run.meter)
    if figures.step % run.job.settings.log_every == 0 or figures.step in (1, run.job.steps):
        run.journal.write(
            figures.step,
            tokens=figures.so_far,
            loss=round(loss, 6),
            lr=figures.rate,
            grad_norm=round(grad_norm, 6) if math.isfinite(grad_norm) else None,
            tokens_per_second=round(speed),
            memory=memory,
            seconds=round(progress.seconds, 3),
        )
    left = run.pace.left(figures.step)
    if left is not None:
        run.listener.expected(left)
    run.listener.stepped(figures.step, run.job.steps, loss, speed, memory)


def _check_health(run: Run, step: int, loss: float, grad_norm: float) -> None:
    recent = run.progress.recent
    usual = sum(recent) / len(recent) if recent else loss
    if math.isfinite(loss) and math.isfinite(grad_norm):
        spiked = run.job.settings.spike and len(recent) >= SPIKE_WINDOW and loss > usual + run.job.settings.spike
        if not spiked:
            return
        what = f"the loss jumped to {loss:.3f} from about {usual:.3f}"
        check = f", or without this check by {option('spike', 0)}"
    else:
        what = "the loss is no number any more" if not math.isfinite(loss) else "the gradients are no numbers any more"
        check = ""
    good = checkpoint.latest(run.path)
    way = (
        f"the last good checkpoint is {good}: go on from it with {option('init_from')} and a lower {option('lr')}"
        if good
        else f"there is no checkpoint before it: run it again with a lower {option('lr')}"
    )
    raise TrainingStopped(f"{what} at step {step:,}, so the run was stopped; {way}{check}")


def _jobs(run: Run) -> list[str]:
    """What is to be done behind the step that the run is at."""
    step, job = run.progress.step, run.job
    last = step == job.steps

    def falls(every: int) -> bool:
        return every > 0 and step % every == 0

    wanted = {
        EVAL: bool(run.evals) and (last or falls(job.eval_every)),
        SAMPLE: run.sampler is not None and job.sample_every > 0 and (last or falls(job.sample_every)),
        SAVE: last or falls(job.checkpoint_every),
    }
    return [name for name, due in wanted.items() if due]


def _owed_at_the_start(run: Run) -> list[str]:
    """Before the first step, how good another model is that the run begins from; later what Ctrl-C left undone."""
    progress = run.progress
    if progress.step == 0:
        first = bool(run.evals) and run.job.settings.init_from is not None
        return [*([EVAL] if first else []), *([SAMPLE] if run.sampler is not None else [])]
    if not progress.owed:
        return []
    return [name for name in _jobs(run) if name in (*progress.owed, SAVE)]


def _attend(run: Run, jobs: list[str], *, stopping: bool = False) -> bool:
    """What is done between steps, as long as no one wants the run to end; returns whether someone does.

    An evaluation or a sample is given up for that, and noted in the checkpoint: the run goes on with it.
    """
    progress = run.progress
    progress.owed = [job for job in jobs if job != SAVE]
    while progress.owed and not stopping:
        began = time.monotonic()
        kind = progress.owed[0]
        done = not run.ranks.first or (_evaluate(run) if kind == EVAL else _sample(run))
        stopping = run.ranks.any(not done)
        if not stopping:
            seconds = time.monotonic() - began
            run.pace.paused(kind, seconds)
            progress.seconds += seconds if kind == EVAL else 0.0
            progress.owed = progress.owed[1:]
    # The best is known to the first alone, and all save or none.
    if progress.step and (run.ranks.any(progress.best == progress.step) or stopping or SAVE in jobs):
        _save(run)
    return stopping or run.ranks.any(run.signals.asked)


def _save(run: Run) -> None:
    """A checkpoint of the run as it stands; its first one makes it the run of its folder."""
    began = time.monotonic()
    if run.ranks.first:
        state = {
            "progress": run.progress.to_dict(),
            "data": run.loader.state(),
            "journal": run.journal.position,
        }
        snapshot = checkpoint.Snapshot.of(run.trainee, run.progress.step, state)
        run.saver.save(snapshot, run.progress.best, run.listener.saved)
        run.journal.follow(run.path, run.progress.step)
    run.ranks.wait()
    run.pace.paused(SAVE, time.monotonic() - began)


def _evaluate(run: Run) -> bool:
    """All sets, unless it is given up; the first score of a set that another model was trained on is what forgetting
    is measured from."""
    progress = run.progress
    first = progress.step == 0
    scores = {}
    try:
        with run.signals.giving_up():
            for wanted in run.evals:

                def told(done: int, total: int, name: str = wanted.name) -> None:
                    run.listener.evaluating(name, done, total)

                scores[wanted.name] = evaluate_model(run.trainee.model, wanted, told)
    except GaveUp:
        return False
    progress.scores = {name: score.to_dict() for name, score in scores.items()}
    if first:
        progress.before = {name: score["loss"] for name, score in progress.scores.items()}
    rises = progress.rises
    judged = scores.get("val") or next(iter(scores.values()))
    if not first and (progress.best_loss is None or judged.loss < progress.best_loss):
        progress.best, progress.best_loss = progress.step, judged.loss
    run.journal.write(progress.step, eval=progress.scores, **({"forgetting": rises} if rises else {}))
    run.listener.evaluated(progress.step, scores, rises)
    for name in sorted(run.job.settings.forgotten(rises).keys() - run.warned_of):
        run.warned_of.add(name)
        run.listener.warned(
            f"the model is forgetting {name}: its loss is {scores[name].loss:.3f}, "
            f"{rises[name]:.3f} above what it was before (a lower learning rate, or some of that data mixed in, helps)"
        )
    return True


def _sample(run: Run) -> bool:
    """What the model writes by now, unless it is given up."""
    try:
        with run.signals.giving_up():
            text = run.sampler(run.trainee.model, run.progress.step)
    except GaveUp:
        return False
    run.journal.write(run.progress.step, sample=text)
    run.listener.sampled(run.progress.step, text)
    return True
