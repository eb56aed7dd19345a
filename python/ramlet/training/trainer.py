"""A run from its settings to a trained model.

    trainer = Trainer(job, feed, folder, engine=engine, chosen=chosen, budget=budget, ...)
    plan = trainer.plan()           # a plan that fits, measured; nothing is written yet
    trainer.begin(plan)             # the model, new or from the last checkpoint
    trainer.run()                   # the training loop (loop.py)
    result = trainer.finish()       # writes the trained model and stats.json

`train_run` does these four for the folder of a new or resumed run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.engines import Engine, Ranks, Trainee
from ramlet.engines.opening import Chosen
from ramlet.engines.plan import Plan, ran_out
from ramlet.errors import SettingsError, option
from ramlet.generation import Sampler
from ramlet.model.dtypes import PRECISIONS
from ramlet.model.files import save_description
from ramlet.model.folder import find_model
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training import checkpoint, kept
from ramlet.training.agreeing import agreed_budget
from ramlet.training.average import Averaging
from ramlet.training.eval_sets import Named, named_sets
from ramlet.training.evaluate import EvalSet, byte_lengths
from ramlet.training.feed import Feed
from ramlet.training.finish import finish_run
from ramlet.training.job import EVALUATION_COST, Job, resolve
from ramlet.training.journal import Journal, load_loggers
from ramlet.training.listener import Listener
from ramlet.training.loop import run_steps
from ramlet.training.pace import Pace
from ramlet.training.plan import plan_run
from ramlet.training.progress import EVAL, SAMPLE, SAVE, Progress
from ramlet.training.rehearsal import Rehearsal
from ramlet.training.run_folder import RunFolder, other_engine, settings_text
from ramlet.training.running import Run
from ramlet.training.saver import Saver
from ramlet.training.settings import RunSettings
from ramlet.training.signals import StopSignals


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    result: ramlet.TrainResult = ramlet.train("my-dataset", "my-run", params="10M", memory="2GB")
    result.loss, result.scores["val"]["perplexity"], result.peak, result.predicted
    """

    path: Path
    steps: int
    tokens: int
    loss: float | None
    """Of the last step."""
    scores: dict[str, dict[str, Any]]
    """Of the model that was kept, by the name of the set."""
    peak: int
    """Measured memory in bytes: of the process tree on a CPU, of the device on a GPU."""
    predicted: int
    """The same, as predicted before the first step."""
    statistics: dict[str, Any] = field(repr=False)  # very long: with a timeline of the memory
    already_done: bool = False


def train_run(
    settings: RunSettings,
    feed: Feed,
    out: str | os.PathLike[str],
    *,
    engine: Engine,
    chosen: Chosen,
    evals: Mapping[str, str],
    memory: Budget | str | int | None,
    meter: Meter,
    resume: bool | None,
    listener: Listener,
) -> TrainResult:
    """Trains in `out`, or resumes the run that is there; `chosen` says why with this engine."""
    with engine.joined() as joined:
        ranks = joined.ranks
        budget = agreed_budget(joined.ranks, settings, evals, joined.budget(memory), asked=memory)
        # Only the first rank writes, and locks the folder.
        with RunFolder(out) if ranks.first else nullcontext(RunFolder(out)) as folder:
            ranks.wait()  # until the first has completed what a kill interrupted
            described = {"settings": settings.decisive(), "data": feed.identity()}
            done = folder.statistics()
            # A run without a checkpoint has nothing to resume from, and nothing to lose.
            noted = None if resume is False or not folder.has_model() else folder.noted()
            job = resolve(settings, feed, joined, evals=len(evals), begun=noted)
            if noted is not None:
                job = job.as_begun(noted["job"])
                folder.refuse_others(noted, described, job.shape.to_dict(), resume=bool(resume))
                if done is not None and done["steps"] >= job.steps:
                    return _result(folder.path, done, already_done=True)
                if checkpoint.latest(folder.path) is None:
                    raise SettingsError(
                        f"{folder.path} has no checkpoints any more, so it cannot be resumed: "
                        f"choose another {option('out')}, with {option('init_from', folder.path)}"
                    )
            ranks.wait()  # until all have checked
            trainer = Trainer(
                job,
                feed,
                folder,
                engine=joined,
                chosen=chosen,
                budget=budget,
                meter=meter,
                listener=listener,
                evals=evals,
                described=described,
                noted=noted,
            )
            try:
                trainer.begin(trainer.plan())
                trainer.run()
                return trainer.finish()
            except joined.out_of_memory:
                raise ran_out(budget, "; the last checkpoint is complete") from None


class Trainer:
    """One run; call its methods in this order."""

    def __init__(
        self,
        job: Job,
        feed: Feed,
        folder: RunFolder,
        *,
        engine: Engine,
        chosen: Chosen,
        budget: Budget,
        meter: Meter,
        listener: Listener,
        evals: Mapping[str, str],
        described: Mapping[str, Any],
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """`chosen` says why with this engine; `described` is what distinguishes this run from others; `noted` is the
        settings.yaml of a resumed run."""
        self.job, self.feed, self.folder = job, feed, folder
        self.engine, self.budget, self.meter, self.listener = engine, budget, meter, listener
        self._chosen, self._evals, self._described, self._noted = chosen, dict(evals), dict(described), noted
        self._sets: list[Named] = []
        self._lengths: Any = None
        """The length of each token in bytes; None without a tokenizer."""
        self._sampler: Sampler | None = None
        self._resumed: tuple[Path, dict[str, Any]] | None = None
        """The checkpoint to resume from, and its state."""
        self._run: Run

    def plan(self) -> Plan:
        """A plan that fits, measured; errors in the settings or the data are raised before anything is written."""
        settings = self.job.settings
        self.engine.cap(self.budget)
        self.meter.stage("planning")
        self._sets = named_sets(self.feed, self._evals, seq_len=self.job.seq_len, val_fraction=settings.val_fraction)
        if not any(each.name.startswith("val") for each in self._sets) and self.feed.validation():
            self.listener.noted("the validation split has less than one sequence: there is no validation loss")
        load_loggers(tensorboard=settings.tensorboard, wandb=settings.wandb)
        # Reading a tokenizer needs much memory for a moment: before measuring what is resident.
        self._read_tokenizer()
        return plan_run(
            self.job,
            self.feed,
            self.engine,
            self.budget,
            self.meter,
            self.listener,
            self.folder.path,
            self._noted,
            self._rehearsal(),
        )

    def _rehearsal(self) -> Rehearsal:
        job = self.job
        one = Ranks()
        return Rehearsal(
            partial(self.feed.loader, job.seq_len, 1, 1, one) if self.feed.reads_at_once else None,
            [replace(each, micro_batch=1, tokens=1) for each in self._eval_sets(1)],
            self._sampler,
            {**self._described, "job": job.described(), "all_settings": asdict(job.settings), "evals": self._evals},
            self.meter,
        )

    def _read_tokenizer(self) -> None:
        tokenizer, settings = self.feed.tokenizer(), self.job.settings
        if tokenizer is None:
            return
        self._lengths = byte_lengths(tokenizer)
        if settings.sample_every != 0:
            self._sampler = Sampler(
                tokenizer, settings.sample_prompt, settings.sample_tokens, settings.seed, self.feed.end_id
            )

    def begin(self, plan: Plan) -> None:
        """Creates the model, and everything that the loop needs."""
        job, engine, ranks, listener = self.job, self.engine, self.engine.ranks, self.listener
        trainee = engine.trainee(
            job.shape, plan.choice, job.settings, seq_len=plan.seq_len, document_mask=plan.document_mask
        )
        progress = self._starting_point(trainee)
        loader = self.feed.loader(job.seq_len, job.sequences, plan.choice.micro_batch, ranks)
        if self._resumed is not None:
            found, state = self._resumed
            with checkpoint.restoring_data(found):
                loader.restore(state["data"])  # refuses a stream that has changed
        if ranks.first:
            self._describe(plan)
        trainee.prepare(plan, ranks.rank)
        before = other_engine(self._noted, engine)
        if self._chosen.why or before:
            listener.noted(f"engine: {self._chosen}{f'; the run was begun with {before}' if before else ''}")
        for line in loader.describe().splitlines():
            listener.noted(line)
        listener.planned(plan, progress.step)
        if not self._sets:
            listener.noted("there is no evaluation set: add a validation split, or a dataset to evaluate on")
        journal = Journal(
            self.folder.place,
            run=self.folder.path,
            position=self._resumed[1]["journal"] if self._resumed else 0,
            step=progress.step,
            tensorboard=job.settings.tensorboard,
            wandb=job.settings.wandb,
            writes=ranks.first,
        )
        averaging = Averaging(self.job.steps, job.settings.average) if job.settings.average else None
        self.meter.stage("training")
        self._run = Run(
            folder=self.folder,
            job=self.job,
            plan=plan,
            trainee=trainee,
            loader=loader,
            evals=self._eval_sets(plan.choice.micro_batch),
            journal=journal,
            listener=listener,
            engine=engine,
            meter=self.meter,
            progress=progress,
            saver=self._saver(progress, averaging, plan.choice.shard != "none"),
            averaging=averaging,
            signals=StopSignals(listener.stopping),
            pace=self._pace(),
            sampler=self._sampler,
        )

    def _saver(self, progress: Progress, averaging: Averaging | None, is_divided: bool) -> Saver:
        return Saver(
            self.folder,
            self.job.settings.keep,
            resumed=progress.step,
            stable=self.job.schedule.stable_until,
            averaging=averaging,
            # Tensors that are divided over ranks are written by all of them together.
            background=not self.engine.uses_host_memory and not is_divided,
            host=self.meter.budget,
        )

    def _starting_point(self, trainee: Trainee) -> Progress:
        """Loads a checkpoint of a resumed run; else new weights, or those of another model."""
        settings = self.job.settings
        found, note = None, ""
        if self._noted is not None:
            found, note = kept.continues_from(self.folder.path, self.job.schedule)
        if note:
            self.listener.noted(note)
        if found is None:
            trainee.reset(settings.seed)
            if settings.init_from is not None:
                trainee.load_weights(find_model(settings.init_from))
            return Progress()
        state = checkpoint.load(found, trainee)
        self._resumed = found, state
        try:
            progress = Progress.from_dict(state["progress"])
        except ValueError as error:
            raise checkpoint.damaged(found, str(error)) from None
        if progress.best is not None and not checkpoint.path_of(self.folder.path, progress.best).is_dir():
            progress.forget_best()
        if progress.step >= self.job.steps:
            # Killed between its last checkpoint and its end: no steps are left.
            self.job = replace(self.job, steps=progress.step)
        return progress

    def _describe(self, plan: Plan) -> None:
        """Writes the run's settings: from here on it is certain to start."""
        made_by = {"ramlet": __version__, **self.engine.versions}
        noted = {"job": self.job.described(), "plan": plan.to_dict(), "all_settings": asdict(self.job.settings)}
        text = settings_text({**self._described, **noted, "evals": self._evals, **made_by})
        if self._resumed is None:
            self.folder.begin()
        self.feed.settle()
        self.folder.note(text)
        save_description(
            self.job.shape,
            self.folder.place,
            tokenizer_file=self.feed.tokenizer_file,
            end_id=self.feed.end_id,
            dtype=PRECISIONS[plan.choice.weights],
        )

    def _eval_sets(self, micro_batch: int) -> list[EvalSet]:
        job = self.job
        return [
            EvalSet(
                name=each.name,
                data=each.data,
                split=each.split,
                seq_len=job.seq_len,
                micro_batch=min(micro_batch, self.engine.eval_rows(job.seq_len)),
                tokens=job.eval_tokens,
                lengths=self._lengths,
                fingerprint=each.fingerprint,
                val_fraction=job.settings.val_fraction,
                document_mask=job.settings.document_mask and each.has_ends,
            )
            for each in self._sets
        ]

    def _pace(self) -> Pace:
        job = self.job
        every = {SAVE: job.checkpoint_every}
        if self._sets:
            every[EVAL] = job.eval_every
        if self._sampler is not None and job.sample_every:
            every[SAMPLE] = job.sample_every
        # An estimate until the first evaluation.
        evaluated = sum(min(job.eval_tokens, each.count) for each in self._sets)
        return Pace(job.steps, every, {EVAL: EVALUATION_COST * evaluated / (job.sequences * job.seq_len)})

    def run(self) -> None:
        """The remaining steps."""
        with self._run.loader:
            try:
                run_steps(self._run)
            finally:
                self._run.saver.wait()
                self._run.journal.close()

    def finish(self) -> TrainResult:
        """Writes the best model next to its settings, and stats.json, which marks the run as finished."""
        statistics = finish_run(self._run, parameters=self.job.shape.parameters, budget=self.budget)
        return _result(self.folder.path, statistics)


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
