"""`ramlet.train`: everything before the first step, and after the last.

result = train("my-dataset", "my-run", params="10M", max_steps=2000, memory="2GB")
result.path, result.loss, result.scores, result.peak, result.predicted
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ramlet import __version__
from ramlet.engines.torch.base_memory import settled_memory
from ramlet.engines.torch.device import Device, choose_device
from ramlet.engines.torch.model_files import load_weights
from ramlet.engines.torch.probe import ResidentGauge, allowance, probe
from ramlet.engines.torch.ranks import Ranks, joined
from ramlet.engines.torch.step import Trainee
from ramlet.engines.torch.trial import tried
from ramlet.errors import BudgetError, RamletError, SettingsError, option
from ramlet.model.dtypes import PRECISIONS
from ramlet.model.files import save_description
from ramlet.runtime.budget import Budget, Meter
from ramlet.training import checkpoint
from ramlet.training.eval_sets import Named, named_sets
from ramlet.training.evaluate import EvalSet, byte_lengths
from ramlet.training.feed import Feed
from ramlet.training.job import EVALUATION_COST, Job, resolve
from ramlet.training.journal import Journal, load_loggers
from ramlet.training.listener import Listener
from ramlet.training.loop import EVAL, SAMPLE, SAVE, Progress, Run, run_steps
from ramlet.training.pace import Pace
from ramlet.training.plan import Choice, Plan, make_plan
from ramlet.training.run_files import WEIGHTS, link
from ramlet.training.run_folder import RunFolder
from ramlet.training.saver import Saver
from ramlet.training.settings import RunSettings
from ramlet.training.signals import StopSignals

__all__ = ["TrainResult", "train_run"]

EVALUATED_TOKENS = 2048
"""In a micro-batch while evaluating: on a GPU what these take comes on top of what training keeps."""


@dataclass(frozen=True)
class TrainResult:
    """What became of a run.

    result: ramlet.TrainResult = ramlet.train("my-dataset", "my-run", params="10M", memory="2GB")
    result.loss, result.scores["val"]["perplexity"], result.peak, result.predicted
    """

    path: Path
    steps: int
    tokens: int
    loss: float | None
    """Of the last step."""
    scores: dict[str, dict[str, Any]]
    """The last evaluation, by the name of the set."""
    peak: int
    """Memory in bytes, as measured: of the process tree on a CPU, of the device on a GPU."""
    predicted: int
    """The same, as the plan said before the first step."""
    statistics: dict[str, Any] = field(repr=False)  # with the memory of every second: pages of it
    already_done: bool = False


@dataclass(frozen=True)
class Place:
    """Where the run takes place, and in how much memory."""

    device: Device
    ranks: Ranks
    budget: Budget
    meter: Meter
    listener: Listener


def train_run(
    settings: RunSettings,
    feed: Feed,
    out: str | os.PathLike[str],
    *,
    evals: Mapping[str, str],
    memory: Budget | str | int | None,
    meter: Meter,
    resume: bool | None,
    listener: Listener,
) -> TrainResult:
    """Trains into `out`, or goes on with the run that is there."""
    with joined(settings.device) as ranks:
        device = choose_device(settings.device, ranks.local)
        place = Place(device, ranks, device.budget(memory), meter, listener)
        job = resolve(settings, feed, device, evals=len(evals))
        with RunFolder(out) if ranks.first else _read_only(out) as folder:
            ranks.wait()  # until the first has ended what a kill interrupted
            described = {"settings": settings.decisive(), "data": feed.identity()}
            saved, done = checkpoint.latest(folder.path), folder.statistics()
            # A run that has not come to its first checkpoint has nothing to go on from, and nothing to lose.
            noted = None if resume is False or not folder.holds_model() else folder.noted()
            if noted is not None:
                folder.refuse_others(noted, described, job.shape.to_dict(), resume=bool(resume))
                if done is not None and done["steps"] >= job.steps:
                    return _result(folder.path, done, already_done=True)
                if saved is None:
                    raise SettingsError(
                        f"the checkpoints of {folder.path} are gone, so it cannot go on: "
                        f"choose another {option('out')}, with {option('init_from', folder.path)}"
                    )
            ranks.wait()  # until all have looked
            try:
                return _train(job, feed, folder, place, dict(evals), described, noted)
            except torch.OutOfMemoryError:
                raise BudgetError(
                    f"the device gives no more than the budget of {place.budget}: "
                    f"give more {option('memory')}, or a smaller {option('micro_batch')}; the last checkpoint is whole"
                ) from None


def _read_only(out: str | os.PathLike[str]) -> AbstractContextManager[RunFolder]:
    """The folder of a rank that writes nothing."""
    return nullcontext(RunFolder(out))


def _train(
    job: Job,
    feed: Feed,
    folder: RunFolder,
    place: Place,
    evals: dict[str, str],
    described: dict[str, Any],
    noted: Mapping[str, Any] | None,
) -> TrainResult:
    settings, ranks = job.settings, place.ranks
    place.device.cap(place.budget)
    place.meter.stage("planning")
    named = named_sets(feed, evals, seq_len=job.seq_len, val_fraction=settings.val_fraction)
    if not any(each.name.startswith("val") for each in named) and feed.validation():
        place.listener.noted("the data keeps less than one sequence for validation: its loss there is not measured")
    load_loggers(tensorboard=settings.tensorboard, wandb=settings.wandb)
    # Tokenizers are large while they are read: before what is resident is looked at.
    lengths, sampler = _tokenizer_needs(settings, feed)
    plan = _plan(job, feed, place, noted)
    place.device.release()
    trainee = Trainee(job.shape, plan.choice, settings, device=place.device.name, ranks=ranks)
    found = checkpoint.latest(folder.path) if noted is not None else None
    progress, state = Progress(), None
    if found is not None:
        state = checkpoint.load(found, trainee)
        try:
            progress = Progress.from_dict(state["progress"])
        except ValueError as error:
            raise checkpoint.damaged(found, str(error)) from None
        if progress.step >= job.steps and progress.step > 0:
            job = _ended(job, progress.step)
    else:
        trainee.reset(settings.seed)
        if settings.init_from is not None:
            load_weights(trainee.model, settings.init_from)
            trainee.model.weights.refresh()
    if ranks.first:
        # From here on the run is certain to begin.
        if found is None:
            folder.begin()
        feed.settle()
        made_by = {"ramlet": __version__, "torch": str(torch.__version__)}
        noted_now = {"job": job.described(), "plan": plan.to_dict(), "all_settings": asdict(settings)}
        folder.note({**described, **noted_now, "evals": evals, **made_by})
        stored = PRECISIONS[plan.choice.weights]
        save_description(job.shape, folder.place, tokenizer_file=feed.tokenizer_file, end_id=feed.end_id, dtype=stored)
    trainee.capture(
        plan.part_sizes(ranks.rank),
        job.seq_len,
        1.0 / (job.sequences * job.seq_len),
        document_mask=settings.document_mask,
    )
    loader = feed.loader(job.seq_len, job.sequences, plan.choice.micro_batch, ranks)
    for line in loader.describe().splitlines():
        place.listener.noted(line)
    place.listener.planned(plan, progress.step)
    if not named:
        place.listener.noted(
            "there is nothing to evaluate on: a validation split, or another dataset to evaluate on, would tell more"
        )
    journal = Journal(
        folder.place,
        run=folder.path,
        position=state["journal"] if state else 0,
        step=progress.step,
        tensorboard=settings.tensorboard,
        wandb=settings.wandb,
        writes=ranks.first,
    )
    place.meter.stage("training")
    with loader:
        if found is not None and state is not None:
            _restore(loader, state["data"], found)
        run = Run(
            folder=folder,
            job=job,
            plan=plan,
            trainee=trainee,
            loader=loader,
            evals=_eval_sets(job, named, plan, lengths),
            journal=journal,
            listener=place.listener,
            device=place.device,
            ranks=ranks,
            meter=place.meter,
            progress=progress,
            saver=Saver(folder, settings.keep, beside=place.device.kind == "cuda", host=place.meter.budget),
            signals=StopSignals(place.listener.stopping),
            pace=_pace(job, named, samples=sampler is not None),
            sampler=sampler,
        )
        try:
            run_steps(run)
        finally:
            run.saver.wait()
            journal.close()
    return _finish(run, folder, place)


def _restore(loader: Any, state: Mapping[str, Any], path: Path) -> None:
    """The place in the data that a checkpoint was made at."""
    try:
        loader.restore(state)
    except RamletError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError):
        raise checkpoint.damaged(path, "data is not as it was written") from None


def _pace(job: Job, named: Sequence[Named], *, samples: bool) -> Pace:
    every = {SAVE: job.checkpoint_every}
    if named:
        every[EVAL] = job.eval_every
    if samples and job.sample_every:
        every[SAMPLE] = job.sample_every
    # Before the first evaluation: what it should take.
    evaluated = sum(min(job.eval_tokens, each.count) for each in named)
    return Pace(job.steps, every, {EVAL: EVALUATION_COST * evaluated / (job.sequences * job.seq_len)})


def _plan(job: Job, feed: Feed, place: Place, noted: Mapping[str, Any] | None) -> Plan:
    """What fits the budget, corrected by a few real steps; of a run that goes on what it was begun with, if it fits."""
    settings = job.settings
    with feed.loader(job.seq_len, job.sequences, None, place.ranks) as loader:
        held = loader.memory
    wanted = {
        "micro_batch": settings.micro_batch,
        "recompute": settings.recompute,
        "optimizer": None if settings.optimizer == "auto" else settings.optimizer,
        "weights": None if settings.weights == "auto" else settings.weights,
    }
    forced = {name: value for name, value in wanted.items() if value is not None}
    # The first step back starts threads, and asks drivers for devices: part of what is there before the model.
    torch.ones(1, requires_grad=True).sum().backward()
    make = partial(
        make_plan,
        job.shape,
        seq_len=job.seq_len,
        batch_size=job.sequences,
        budget=place.budget,
        device=place.device.kind,
        compute=job.precision,
        base=settled_memory() if place.device.kind == "cpu" else 0,
        loader_bytes=(lambda rows: held(micro_batch=rows)) if place.device.kind == "cpu" else 0,
        document_mask=settings.document_mask,
        world=place.ranks.world,
        threads=torch.get_num_threads(),
    )
    if noted is not None:
        before = dict(noted["plan"]["choice"])
        # Its states are on disk as they are; only how a step is divided may change, and on a GPU with it the last bits.
        kept = {name: before[name] for name in ("optimizer", "weights", "compute")}
        if any(kept[name] != value for name, value in forced.items() if name in kept):
            raise SettingsError("a run keeps its optimizer and its kind of weights: leave these settings as they were")
        try:
            return _probed(make, {**before, **forced}, job, place)
        except BudgetError:
            forced |= kept
        if place.device.kind != "cpu":
            place.listener.noted(
                "the budget is smaller than before: steps are divided differently, which changes last bits"
            )
    return _probed(make, forced, job, place)


def _probed(make: Callable[..., Plan], forced: Mapping[str, Any], job: Job, place: Place) -> Plan:
    place.meter.stage("probing")
    replan = partial(make, forced=forced)

    def build(choice: Choice) -> Trainee:
        return Trainee(job.shape, choice, job.settings, device=place.device.name)

    if place.device.kind == "cuda":
        rows = _eval_rows(job)
        return tried(replan, build, device=place.device, budget=place.budget, eval_rows=rows)
    plan = replan(correction=allowance(place.budget))
    place.budget.require(place.meter.peak, "Python and torch, while they are loaded")
    return probe(plan, build, gauge=ResidentGauge(place.meter), replan=replan).at_least(place.meter.peak)


def _eval_rows(job: Job) -> int:
    return max(1, EVALUATED_TOKENS // job.seq_len)


def _ended(job: Job, step: int) -> Job:
    """A run that was killed between its last checkpoint and its end has nothing left to learn."""
    return replace(job, steps=step)


def _tokenizer_needs(settings: RunSettings, feed: Feed) -> tuple[torch.Tensor | None, Any]:
    """Each token's length in bytes, and what samples are made with; neither where there is no tokenizer."""
    tokenizer = feed.tokenizer()
    if tokenizer is None:
        return None, None
    lengths = byte_lengths(tokenizer)
    if settings.sample_every == 0:
        return lengths, None
    from ramlet.generation import Sampler

    return lengths, Sampler(tokenizer, settings.sample_prompt, settings.sample_tokens, settings.seed, feed.end_id)


def _eval_sets(job: Job, named: Sequence[Named], plan: Plan, lengths: torch.Tensor | None) -> list[EvalSet]:
    return [
        EvalSet(
            name=each.name,
            data=each.data,
            split=each.split,
            seq_len=job.seq_len,
            micro_batch=min(plan.choice.micro_batch, _eval_rows(job)),
            tokens=job.eval_tokens,
            lengths=lengths,
            val_fraction=job.settings.val_fraction,
            document_mask=job.settings.document_mask,
        )
        for each in named
    ]


def _finish(run: Run, folder: RunFolder, place: Place) -> TrainResult:
    """The trained model beside its settings, and stats.json, which says that it is finished."""
    progress = run.progress
    place.meter.stage("finishing")
    peak = place.device.peak(place.meter)
    statistics = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "loss": progress.loss,
        "scores": progress.scores,
        **({"forgetting": progress.rises} if progress.before else {}),
        "best": {"step": progress.best, "loss": progress.best_loss},
        "parameters": run.job.shape.parameters,
        "memory": {
            **place.meter.summary(),
            "device": place.device.kind,
            "device_budget": place.budget.asked,
            "device_peak": peak,
            "predicted": run.plan.peak,
            "predicted_parts": run.plan.parts,
        },
    }
    if place.ranks.first:
        last = checkpoint.latest(folder.path)
        assert last is not None
        link(last / WEIGHTS, folder.path / WEIGHTS)
        folder.finish(statistics)
    return _result(folder.path, statistics)


def _result(path: Path, statistics: dict[str, Any], *, already_done: bool = False) -> TrainResult:
    return TrainResult(
        path=path,
        steps=statistics["steps"],
        tokens=statistics["tokens"],
        loss=statistics["loss"],
        scores=statistics["scores"],
        peak=statistics["memory"]["device_peak"],
        predicted=statistics["memory"]["predicted"],
        statistics=statistics,
        already_done=already_done,
    )
