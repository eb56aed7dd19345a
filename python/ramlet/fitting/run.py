"""A run of `ramlet.fit`, from its arguments to a trained module.

    run = Fitting(subject, source, folder, ...)
    plan = run.plan()           # measured; nothing is written yet
    run.begin(plan)             # the optimizer, new or from the last checkpoint
    run.run()                   # the loop of ramlet.train
    result = run.finish()

The loop, the journal, checkpoints and the choice of the best model are those of `ramlet.train` (training/).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet import __version__
from ramlet.errors import BudgetError, SettingsError, option
from ramlet.fitting.folder import ModuleFolder
from ramlet.fitting.job import FitJob, resolve
from ramlet.fitting.source import Source, as_dict, check_loader, is_endless, length_of, loader_inside
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.training import checkpoint, kept
from ramlet.training.evaluate import Score
from ramlet.training.finish import finish_run
from ramlet.training.journal import Journal, load_loggers
from ramlet.training.listener import Listener
from ramlet.training.loop import run_steps
from ramlet.training.pace import Pace
from ramlet.training.progress import EVAL, SAVE, Progress
from ramlet.training.run_folder import settings_text
from ramlet.training.running import Run
from ramlet.training.saver import Saver
from ramlet.training.settings import RunSettings
from ramlet.training.signals import StopSignals

if TYPE_CHECKING:
    from ramlet.engines.torch.modules.plan import ModulePlan
    from ramlet.engines.torch.modules.subject import Subject
    from ramlet.engines.torch.modules.trainee import ModuleTrainee


@dataclass(frozen=True)
class FitResult:
    """The result of `ramlet.fit`; the module itself has the weights of the last step.

    result: ramlet.FitResult = ramlet.fit(module, loader, loss=loss, out="my-run", memory="4GB")
    result.loss, result.scores, result.peak, result.plan.micro_batch
    """

    path: Path
    steps: int
    count: int
    """Targets or samples that were trained on."""
    loss: float | None
    """Of the last step."""
    scores: dict[str, dict[str, Any]]
    """Of the model in `path`, by the name of the evaluation set."""
    peak: int
    """Measured memory in bytes: of the process tree on a CPU, of the device on a GPU."""
    plan: ModulePlan
    statistics: dict[str, Any] = field(repr=False)
    already_done: bool = False


@dataclass(frozen=True)
class CountedScore(Score):
    """Of samples, for which there is no perplexity."""

    def to_dict(self) -> dict[str, Any]:
        return {"loss": round(self.loss, 6), "samples": self.tokens}


@dataclass(frozen=True)
class EvalLoader:
    """A loader to evaluate on."""

    name: str
    loader: Any
    most: int | None
    """Batches."""
    fingerprint: str = ""
    """Nothing is known of its data."""

    @property
    def batches(self) -> int | None:
        known = [count for count in (self.most, length_of(self.loader)) if count is not None]
        return min(known) if known else None

    def check(self, subject: Subject, seed: int) -> None:
        """Refuses a set without batches: it would score 0, the best loss there is."""
        count = length_of(self.loader)
        if count is None:  # only reading can tell
            with closing(self.read(subject, seed)) as found:
                count = int(any(True for _ in found))
        if not count:
            raise SettingsError(f"the evaluation set {self.name} has no batches: give one that has, or none")

    def read(self, subject: Subject, seed: int) -> Generator[Any, None, None]:
        inside = loader_inside(self.loader)
        if inside is not None:
            inside.rewind()
        subject.seed_evaluation(seed, 0)
        for number, batch in enumerate(islice(self.loader, self.batches)):
            yield subject.tensors(as_dict(batch))
            subject.seed_evaluation(seed, number + 1)


class Fitting:
    """One run; call its methods in this order."""

    def __init__(
        self,
        subject: Subject,
        source: Source,
        folder: ModuleFolder,
        *,
        settings: RunSettings,
        steps: int,
        optimizer: Any,
        evals: list[EvalLoader],
        described: Mapping[str, Any],
        noted: Mapping[str, Any] | None,
        budget: Budget,
        meter: Meter,
        listener: Listener,
    ) -> None:
        """`noted` is the settings.yaml of a resumed run."""
        self.subject, self.source, self.folder = subject, source, folder
        self.settings, self.steps, self.optimizer = settings, steps, optimizer
        self.budget, self.meter, self.listener = budget, meter, listener
        self._evals, self._described, self._noted = evals, dict(described), noted
        self._trainee: ModuleTrainee
        self._plan: ModulePlan
        self._run: Run

    def plan(self) -> ModulePlan:
        for each in self._evals:
            each.check(self.subject, self.settings.seed)
        load_loggers(tensorboard=self.settings.tensorboard, wandb=self.settings.wandb)
        kept = self._noted["plan"] if self._noted is not None else None
        return planned(
            self.subject,
            self.source,
            self.settings,
            self.optimizer,
            budget=self.budget,
            meter=self.meter,
            listener=self.listener,
            kept=kept,
        )

    def begin(self, plan: ModulePlan) -> None:
        """Creates the optimizer, and everything that the loop needs."""
        subject, listener, settings = self.subject, self.listener, self.settings
        chosen = plan.optimizer if isinstance(self.optimizer, str) else self.optimizer
        self._plan, self._trainee = plan, subject.trainee(chosen, settings, plan)
        job = resolve(
            settings,
            self.steps,
            parameters=self._described["job"]["parameters"],
            optimizer=chosen,
            rate=self._trainee.own_rate,
            begun=self._noted["job"] if self._noted is not None else None,
        )
        text = self._settings_text(plan, job)
        found, state = None, None
        if self._noted is not None:
            found, note = kept.continues_from(self.folder.path, job.schedule)
            if note:
                listener.noted(note)
        progress = Progress()
        if found is not None:
            state = checkpoint.load(found, self._trainee, prepare=self._trainee.prepare_states)
            progress = _progress(found, state)
            if progress.best is not None and not checkpoint.path_of(self.folder.path, progress.best).is_dir():
                progress.forget_best()
            with checkpoint.restoring_data(found):
                self.source.restore(state["data"])
        else:
            self.folder.begin()
        self.folder.note(text)  # from here on it is certain to start
        for note in plan.notes:
            listener.noted(note)
        shown: Any = plan  # not a `Plan`, but with a peak and a table too
        listener.planned(shown, progress.step)
        self.meter.stage("training")
        self._run = Run(
            folder=self.folder,
            job=job,
            plan=plan,
            trainee=self._trainee,
            loader=self.source.planned(plan),
            evals=self._evals,
            journal=Journal(
                self.folder.place,
                run=self.folder.path,
                position=state["journal"] if state is not None else 0,
                step=progress.step,
                tensorboard=settings.tensorboard,
                wandb=settings.wandb,
            ),
            listener=listener,
            engine=subject.engine,
            meter=self.meter,
            progress=progress,
            saver=Saver(
                self.folder,
                settings.keep,
                resumed=progress.step,
                stable=job.schedule.stable_until,
                background=not subject.engine.uses_host_memory,
                host=self.meter.budget,
            ),
            signals=StopSignals(listener.stopping),
            pace=Pace(job.steps, {SAVE: job.checkpoint_every, **({EVAL: job.eval_every} if self._evals else {})}),
            evaluate=self._evaluate,
            keeps_begun_steps=True,
            unit=plan.unit,
            remedy=f"load it into the module, and continue in another {option('out')} with a lower {option('lr')}",
        )

    def _settings_text(self, plan: ModulePlan, job: FitJob) -> str:
        return settings_text(
            {
                **self._described,
                "job": {**self._described["job"], **job.described()},
                "plan": plan.to_dict(),
                "all_settings": asdict(self.settings),
                "ramlet": __version__,
                **self.subject.engine.versions,
            }
        )

    def _evaluate(self, model: Any, wanted: EvalLoader, progress: Any) -> Score:
        total = wanted.batches or 0
        with closing(wanted.read(self.subject, self.settings.seed)) as batches:
            mean, count = self.subject.scored(
                self._trainee, batches, self._plan, lambda done: progress(done, max(done, total))
            )
        if not count:
            raise SettingsError(
                f"every target of the evaluation set {wanted.name} is ignored: give one with others, or none at all"
            )
        if not math.isfinite(mean):
            self.listener.warned(f"the loss on {wanted.name} is {mean}")
        kind = Score if self._plan.unit == "tokens" else CountedScore
        return kind(mean, round(count), None)

    def run(self) -> None:
        """The remaining steps."""
        with self.source:
            try:
                run_steps(self._run)
            finally:
                self._trainee.return_rates()
                self._run.saver.wait()
                self._run.journal.close()

    def finish(self) -> FitResult:
        statistics = finish_run(self._run, parameters=self._described["job"]["parameters"], budget=self.budget)
        return result_of(self.folder.path, statistics, self._plan)


def planned(
    subject: Subject,
    source: Source,
    settings: RunSettings,
    optimizer: Any,
    *,
    budget: Budget,
    meter: Meter,
    listener: Listener,
    kept: Mapping[str, Any] | None = None,
) -> ModulePlan:
    """A plan that fits, measured; that of a resumed run (`kept`) if it still does."""
    import yaml  # noqa: F401 - to write settings.yaml: resident before it is measured what is

    subject.engine.cap(budget)
    subject.place()
    meter.stage("planning")
    batch = source.largest()
    named = isinstance(optimizer, str)
    fixed: dict[str, Any] = {"micro_batch": settings.micro_batch, "recompute": settings.recompute}
    shared: dict[str, Any] = {"clip": settings.clip, "accumulation": settings.gradient_accumulation_steps}
    try:
        if kept is not None:
            # Another division has other last bits.
            again = {name: kept[name] for name in ("micro_batch", "recompute", "reuse")}
            again.update({name: value for name, value in fixed.items() if value is not None})
            optimizer = kept["optimizer"] if named else optimizer
            try:
                return subject.plan(batch, budget, meter, settings, optimizer=optimizer, **shared, **again)
            except BudgetError:
                listener.noted("the budget is smaller than before: steps are divided differently, in the last bits")
        return subject.plan(batch, budget, meter, settings, optimizer=optimizer, **shared, **fixed)
    finally:
        source.close()


def _progress(found: Path, state: Mapping[str, Any]) -> Progress:
    try:
        return Progress.from_dict(state["progress"])
    except ValueError as error:
        raise checkpoint.damaged(found, str(error)) from None


def result_of(path: Path, statistics: dict[str, Any], plan: ModulePlan, *, already_done: bool = False) -> FitResult:
    return FitResult(
        path=path,
        steps=statistics["steps"],
        count=statistics["tokens"],
        loss=statistics["loss"],
        scores=statistics["scores"],
        peak=statistics["memory"]["device_peak"],
        plan=plan,
        statistics=statistics,
        already_done=already_done,
    )


def eval_loaders(given: Any, most: int | None, *, training: Any) -> list[EvalLoader]:
    """A loader, called `val`, or several by name; none of them is that of the training."""
    if given is None:
        return []
    named = given if isinstance(given, Mapping) else {"val": given}
    for name, loader in named.items():
        check_loader(loader, "evals")
        if isinstance(loader, Iterator):
            raise SettingsError(f"the evaluation set {name} can be read only once: give a loader, not its iterator")
        if loader_inside(loader) is not None and loader_inside(loader) is loader_inside(training):
            raise SettingsError(
                f"the evaluation set {name} is the loader of the training, which has one position: create a second one"
            )
        if most is None and is_endless(loader):
            raise SettingsError(
                f"the evaluation set {name} has no end: give {option('eval_batches')}, or a loader with epochs=1"
            )
    return [EvalLoader(str(name), loader, most) for name, loader in named.items()]
