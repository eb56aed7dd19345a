"""The training loop: steps, and between them evaluations, samples and checkpoints.

    run_steps(run)

After an interruption the same call resumes from the last checkpoint, and on a CPU ends bit-identical to a run that was
never interrupted: the order of the data, the samples and the rounding depend on the seed and the step alone, and the
plan is stored with the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ramlet.engines import Pending, training_names
from ramlet.errors import Interrupted, TrainingStopped, option
from ramlet.model.tensor_file import send_tensors
from ramlet.training import checkpoint
from ramlet.training.evaluate import Score, evaluate_model, judged_by, judging
from ramlet.training.kept import Averaged
from ramlet.training.progress import AVERAGE, EVAL, SAMPLE, SAVE
from ramlet.training.running import Run
from ramlet.training.signals import GaveUp

SPIKE_WINDOW = 64


def run_steps(run: Run) -> None:
    """Runs the remaining steps; when interrupted, saves a checkpoint to resume from."""
    progress = run.progress
    continued = run.job.settings.init_from is not None
    progress.evaluates({each.name: each.fingerprint for each in run.evals}, partial(judging, continued=continued))
    with run.signals as signals:
        if _run_tasks(run, _initial_tasks(run)):
            raise _interrupted(run)
        batches = iter(run.loader)
        began = time.monotonic() - progress.seconds
        run.mark = run.engine.mark()
        pending: _StepMetrics | None = None
        while progress.step < run.job.steps:
            metrics = _one_step(run, batches)
            if metrics is None:
                if pending is not None:
                    _report(run, pending)
                _run_tasks(run, [], stopping=True)
                raise _interrupted(run)
            progress.seconds = time.monotonic() - began
            # On a GPU the metrics are read a step later, when they are long computed: it never waits for Python.
            if pending is not None:
                _report(run, pending)
            pending = metrics
            if not run.engine.is_async:
                _report(run, pending)
                pending = None
            stopping = run.ranks.any(signals.asked)
            tasks = _due_tasks(run)
            if tasks or stopping:
                if pending is not None:
                    _report(run, pending)
                    pending = None
                stopping = _run_tasks(run, tasks, stopping=stopping)
                began = time.monotonic() - progress.seconds
                run.mark = run.engine.mark()
            if stopping and (progress.step < run.job.steps or progress.owed):
                raise _interrupted(run)
        if run.averaging is not None and run.ranks.any(run.takes_part and not _evaluate_average(run)):
            raise _interrupted(run)


def _interrupted(run: Run) -> Interrupted:
    step, steps = run.progress.step, run.job.steps
    if not step:
        return Interrupted("interrupted before the first step, nothing to save: run the same command to start again")
    where = f"at step {step:,} of {steps:,}" if step < steps else f"after the last of {steps:,} steps"
    return Interrupted(f"interrupted {where}, and saved: run the same command to resume")


@dataclass
class _StepMetrics:
    """Of one step; some may still be on the device."""

    step: int
    tokens: int
    """In this step; `so_far` counts all."""
    so_far: int
    rate: float
    loss: Pending
    grad_norm: Pending
    mark: Any
    """When it is done."""


def _one_step(run: Run, batches: Iterator[Any]) -> _StepMetrics | None:
    """Accumulates the gradients of this rank's share of a global batch, and updates the weights.

    None if a signal came in between: a step may take minutes. It is made again when the run resumes.
    """
    assumed = run.plan.step_tokens
    total: Any = 0.0
    learned = done = 0
    while True:
        batch = next(batches)
        total = total + run.trainee.learn(batch, 1.0 / assumed)
        learned += batch.trained
        done += 1
        if batch.last_of_step:
            break
        if run.signals.asked and run.repeats_steps:
            return None
    if run.plan.shard != "none":
        for _ in range(done, run.plan.calls(batch.step_sequences)):
            total = total + run.trainee.learn(_nothing_of(batch), 1.0 / assumed)
    total, learned = run.trainee.over_ranks(total, learned)
    divisor = learned or 1  # nothing but padding: the gradients are 0 anyway
    rate = run.job.schedule(run.progress.step)
    grad_norm = run.trainee.update(rate, run.job.settings.clip, assumed / divisor)
    run.progress.step += 1
    run.progress.tokens += round(learned)
    so_far = run.progress.tokens
    return _StepMetrics(run.progress.step, learned, so_far, rate, total / divisor, grad_norm, run.engine.mark())


def _nothing_of(batch: Any) -> dict[str, Any]:
    """A micro-batch without sequences."""
    return {name: batch[name][:0] for name in (*training_names(batch.document_ids is not None), "samples")}


def _report(run: Run, metrics: _StepMetrics) -> None:
    """Reads a step's metrics, logs them, and stops the run if they show that it diverged."""
    loss, grad_norm = float(metrics.loss), float(metrics.grad_norm)  # waits until a GPU has done the step
    progress = run.progress
    seconds = run.engine.seconds(run.mark, metrics.mark)
    run.mark = metrics.mark
    run.pace.stepped(seconds)
    speed = metrics.tokens / max(1e-9, seconds)
    overflow = not math.isfinite(grad_norm) and run.trainee.overflow_is_normal
    if not overflow:
        _check_health(run, metrics.step, loss, grad_norm)
        progress.recent = [*progress.recent, loss][-SPIKE_WINDOW:]
        progress.loss = loss
    memory = run.engine.current(run.meter)
    if metrics.step % run.job.settings.log_every == 0 or metrics.step in (1, run.job.steps):
        run.journal.write(
            metrics.step,
            **{run.unit: metrics.so_far},
            loss=round(loss, 6) if math.isfinite(loss) else None,
            lr=metrics.rate,
            grad_norm=round(grad_norm, 6) if math.isfinite(grad_norm) else None,
            **{f"{run.unit}_per_second": round(speed)},
            memory=memory,
            seconds=round(progress.seconds, 3),
        )
    left = run.pace.left(metrics.step)
    if left is not None:
        run.listener.expected(left)
    run.listener.stepped(metrics.step, run.job.steps, loss, speed, memory)


def _check_health(run: Run, step: int, loss: float, grad_norm: float) -> None:
    recent = run.progress.recent
    usual = sum(recent) / len(recent) if recent else loss
    spiked = False
    if math.isfinite(loss) and math.isfinite(grad_norm):
        spike = run.job.settings.spike
        spiked = spike > 0 and len(recent) >= SPIKE_WINDOW and loss > usual + spike
        if not spiked:
            return
        what = f"the loss jumped to {loss:.3f} from about {usual:.3f}"
        check = f", or disable this check with {option('spike', 0)}"
    else:
        what = f"the {'gradients' if math.isfinite(loss) else 'loss'} became NaN or infinite"
        check = ""
    # The loss of a step is that of the weights before it: if it is wrong, they may be.
    suspect = (spiked or not math.isfinite(loss)) and run.progress.evaluated != step - 1
    raise _stopped(run, step, what, check, good_until=step - 2 if suspect else step - 1)


def _stopped(run: Run, step: int, what: str, check: str = "", *, good_until: int) -> TrainingStopped:
    """`good_until`: the last step whose weights are known to be good."""
    run.saver.settle(good_until)
    found = checkpoint.checkpoints(run.path)
    good = [path for at, path in found if at <= good_until]
    if good:
        remedy = f"the last good checkpoint is {good[-1]}: {run.remedy}"
    elif found:
        again = f"{option('resume', False)} and a lower {option('lr')}"
        remedy = f"there is no good checkpoint before it: start over with {again}"
    else:
        remedy = f"there is no checkpoint before it: run it again with a lower {option('lr')}"
    return TrainingStopped(f"{what} at step {step:,}, so the run was stopped; {remedy}{check}")


def _broken(run: Run, name: str) -> TrainingStopped:
    """About an evaluation set on which the loss is no number."""
    if step := run.progress.step:
        return _stopped(run, step, f"the loss on {name} became NaN or infinite", good_until=step - 1)
    return TrainingStopped(
        f"the loss on {name} is NaN or infinite before the first step: the weights of {run.job.settings.init_from} "
        f"are damaged, or need {option('precision', 'fp32')}"
    )


def _due_tasks(run: Run) -> list[str]:
    """The tasks after the current step."""
    step, job = run.progress.step, run.job
    last = step == job.steps

    def due(every: int) -> bool:
        return every > 0 and step % every == 0

    wanted = {
        EVAL: bool(run.evals) and (last or due(job.eval_every)),
        SAMPLE: run.sampler is not None and job.sample_every > 0 and (last or due(job.sample_every)),
        AVERAGE: run.averaging is not None and step in run.averaging.moments,
        SAVE: last or due(job.checkpoint_every) or step == job.schedule.stable_until,
    }
    return [name for name, is_due in wanted.items() if is_due]


def _initial_tasks(run: Run) -> list[str]:
    """Before the first step, an evaluation of the model to start from; when resuming, what Ctrl-C interrupted."""
    progress = run.progress
    if progress.step == 0:
        first = bool(run.evals) and run.job.settings.init_from is not None
        return [*([EVAL] if first else []), *([SAMPLE] if run.sampler is not None else [])]
    owed = progress.owed and [name for name in _due_tasks(run) if name in (*progress.owed, SAVE)]
    # Without a step left, as with fewer of them than it has made, or with other sets.
    measured = progress.evaluated == progress.step and progress.scores.keys() == {each.name for each in run.evals}
    if progress.step < run.job.steps or measured or not run.evals:
        return owed
    return [EVAL, *(name for name in owed if name == SAMPLE), SAVE]


def _run_tasks(run: Run, tasks: list[str], *, stopping: bool = False) -> bool:
    """Runs the tasks between steps until the run is asked to stop; returns whether it is.

    An evaluation or sample is abandoned for that and noted in the checkpoint, so that the resumed run does it first.
    """
    progress = run.progress
    progress.owed = [task for task in tasks if task in (EVAL, SAMPLE)]
    while progress.owed and not stopping:
        began = time.monotonic()
        kind = progress.owed[0]
        done = not run.takes_part or (_evaluate(run) if kind == EVAL else _sample(run))
        stopping = run.ranks.any(not done)
        if kind == EVAL and run.ranks.any(bool(run.broken)):
            raise _broken(run, run.broken or "an evaluation set")
        if not stopping:
            seconds = time.monotonic() - began
            run.pace.paused(kind, seconds)
            progress.seconds += seconds if kind == EVAL else 0.0
            progress.owed = progress.owed[1:]
    if AVERAGE in tasks and run.ranks.first:
        run.saver.average(progress.step, run.trainee.weights())
    elif AVERAGE in tasks and run.evaluates_together:
        send_tensors(run.trainee.weights(), blended=True)
    # Also if the signal came while an average was written. A later one is seen after the next step.
    stopping = stopping or run.ranks.any(run.signals.asked)
    # Only the first rank knows the best step, but either all ranks save or none.
    if not (progress.step and (run.ranks.any(progress.best == progress.step) or stopping or SAVE in tasks)):
        return stopping
    _save(run, required=stopping or _is_required(run, tasks))
    return stopping or run.ranks.any(run.signals.asked)


def _is_required(run: Run, tasks: list[str]) -> bool:
    """Whether a checkpoint after this step is more than a precaution."""
    step, job = run.progress.step, run.job
    asked_for = job.settings.checkpoint_every is not None and SAVE in tasks
    # An average on disk relies on the checkpoint of the same step.
    return asked_for or run.averaging is not None or step in (job.steps, job.schedule.stable_until)


def _save(run: Run, *, required: bool) -> None:
    """Saves a checkpoint; with its first one, the run replaces an older one in its folder."""
    began = time.monotonic()
    if run.ranks.first:
        state = {
            "progress": run.progress.to_dict(),
            "data": run.loader.state(),
            "journal": run.journal.position,
            "schedule": asdict(run.job.schedule),
            "model": run.progress.model_step,
        }
        snapshot = checkpoint.Snapshot.of(run.trainee, run.progress.step, state)
        run.saver.save(snapshot, run.progress.best, run.listener.saved, required=required)
        run.journal.follow(run.path, run.progress.step)
    elif run.plan.shard != "none":
        run.saver.follow(checkpoint.Snapshot.of(run.trainee, run.progress.step, {}))
    run.ranks.wait()
    run.pace.paused(SAVE, time.monotonic() - began)


def _evaluate(run: Run) -> bool:
    """Evaluates all sets; False if interrupted. Forgetting is measured against the first scores."""
    progress = run.progress
    try:
        scores = _scores(run)
    except GaveUp:
        return False
    run.broken = next((name for name, score in scores.items() if not math.isfinite(score.loss)), "")
    if run.broken:
        return True  # and is neither saved nor compared: a model like this is nobody's best
    progress.evaluated_as(scores, _judged(run, scores))
    rises = progress.rises(progress.scores)
    run.journal.write(progress.step, eval=progress.scores, **({"forgetting": rises} if rises else {}))
    run.listener.evaluated(progress.step, scores, rises)
    for name in sorted(run.job.settings.forgotten(rises).keys() - run.warned_of):
        run.warned_of.add(name)
        run.listener.warned(
            f"the model is forgetting {name}: its loss is {scores[name].loss:.3f}, {rises[name]:.3f} higher than "
            "at the start (a lower learning rate helps, or mixing in some of that data)"
        )
    return True


def _scores(run: Run) -> dict[str, Score]:
    """Evaluates the model on all sets; raises GaveUp if interrupted."""
    evaluate = run.evaluate or evaluate_model
    with _giving_up(run):
        return {
            wanted.name: evaluate(run.trainee.model, wanted, partial(_evaluating, run, wanted.name))
            for wanted in run.evals
        }


def _evaluating(run: Run, name: str, done: int, total: int) -> None:
    run.listener.evaluating(name, done, total)
    if run.evaluates_together and run.ranks.any(run.signals.asked):
        raise GaveUp


def _giving_up(run: Run) -> AbstractContextManager[None]:
    """A block that a signal leaves with `GaveUp`: at once, unless other ranks would then wait for this one."""
    return nullcontext() if run.evaluates_together else run.signals.giving_up()


def _judged(run: Run, scores: dict[str, Score]) -> Score | None:
    return judged_by(scores, continued=run.job.settings.init_from is not None)


def _evaluate_average(run: Run) -> bool:
    """Loads the average in place of the weights, which are saved, and evaluates it; False if interrupted."""
    assert run.averaging is not None
    run.saver.wait()
    if run.evaluates_together:
        run.ranks.wait()  # until the first rank has written it
    count = run.averaging.load(run.path, run.trainee)
    if not count:
        return True
    began = time.monotonic()
    try:
        scores = _scores(run)
    except GaveUp:
        return False
    run.progress.seconds += time.monotonic() - began
    run.averaged = Averaged(count, {name: score.to_dict() for name, score in scores.items()}, _judged(run, scores))
    run.journal.write(run.progress.step, averaged=count, average=run.averaged.scores)
    run.listener.averaged(count, scores)
    return True


def _sample(run: Run) -> bool:
    """Generates a sample; False if interrupted."""
    try:
        with _giving_up(run):
            text = run.sampler(run.trainee.model, run.progress.step)
    except GaveUp:
        return False
    run.journal.write(run.progress.step, sample=text)
    run.listener.sampled(run.progress.step, text)
    return True
