"""`ramlet.run_pipeline`: a file -> tokenizer, dataset, model and report, and of these only what changed.

    result = ramlet.run_pipeline("pipeline.yaml", memory="2GB")
    [(stage.name, stage.what) for stage in result.stages], result.peak

Every stage is its own command in its own process (process.py says why), within one budget: the whole less what this
process takes. What is made, and from what, is in WORK/pipeline.json (record.py); judging.py says what a change leads
to. Interrupted at any moment, also by kill -9, the same call goes on: between stages from the record, within one as
the stage itself can.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ramlet.errors import Interrupted, PipelineError, RamletError, SettingsError, option
from ramlet.pipeline.file import Pipeline, load
from ramlet.pipeline.judging import Verdict, judge
from ramlet.pipeline.process import Ended, run_stage
from ramlet.pipeline.record import Record
from ramlet.pipeline.stages import NAMES, Stage, fetched, fetched_to, names_of, refuse_early, shown, stages
from ramlet.pipeline.wording import in_words_of_the_file
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.meter import Meter
from ramlet.settings.names import meant

__all__ = ["PipelineListener", "PipelineResult", "StageResult", "run_pipeline"]

OWN_STEP = 16_000_000
OWN_GROWTH = 4_000_000
"""What this process takes is rounded up, so that the budget of a stage, and with it the division of its steps, is the
same whenever the same command goes on."""


@dataclass(frozen=True)
class StageResult:
    """What became of a stage."""

    name: str
    path: str
    what: str
    """`kept`, `made`, or, where nothing was to be run, `due`."""
    why: str
    command: str
    """That a user may take over with."""
    figures: dict[str, Any]
    """What the command said of its result; empty where it was kept, or shown instead."""
    moved: str | None = None
    """Where what was there before is now."""


@dataclass(frozen=True)
class PipelineResult:
    work: str
    stages: tuple[StageResult, ...]
    peak: int
    """Memory in bytes, of this process and all stages."""
    budget: int


class PipelineListener:
    """Told what happens; the command shows it."""

    shows_stages = False
    """Whether stages print by themselves."""
    quiet = False

    def noted(self, line: str) -> None: ...

    def began(self, stage: StageResult) -> None: ...

    def ended(self, stage: StageResult) -> None: ...

    def staged(self, done: int, total: int) -> None: ...


def run_pipeline(
    path: str | os.PathLike[str],
    *,
    memory: Budget | str | int | None = None,
    threads: int | None = None,
    only: str | None = None,
    force: str | Iterable[str] = (),
    dry_run: bool = False,
    listener: PipelineListener | None = None,
) -> PipelineResult:
    """Makes what the file asks for and is not there yet, never holding more than `memory`.

    `memory` and `threads` win over the file's. `only` is the one stage to run, of text, tokenizer, data, training and
    report; those of `force` are made anew, the old moved aside. With `dry_run` nothing is done: the result says what
    would be. A stage that fails is a PipelineError with its sentence.

        result = ramlet.run_pipeline("pipeline.yaml", memory="2GB")
        [(stage.name, stage.what) for stage in result.stages]  # [("tokenizer", "kept"), ("data", "made"), ...]
    """
    pipeline = load(path)
    forced = [force] if isinstance(force, str) else list(force)
    asked = names_of(pipeline)
    for name in [*forced, *([only] if only is not None else [])]:
        _check_name(name, asked, pipeline.path)
        if only not in (None, name):
            raise SettingsError(
                f"{option('only', only)} leaves out {name}, which {option('force')} asks for: leave one of the two out"
            )
    given = memory if memory is not None else pipeline.memory
    budget = Budget.parse(given)
    refuse_early(pipeline)
    with Record(pipeline.work, writes=not dry_run) as record, Meter(budget) as meter:
        record.claim(pipeline.path)
        written = str(budget.total) if isinstance(given, Budget) else given
        run = _Run(pipeline, record, budget, written, threads or pipeline.threads, listener or PipelineListener())
        made = tuple(run.all(only, forced, dry_run))
    return PipelineResult(pipeline.work, made, meter.peak, budget.total)


def _check_name(name: str, asked: list[str], path: str) -> None:
    if name in asked:
        return
    if name in NAMES:
        raise SettingsError(f"{path} asks for no {name}: its stages are {', '.join(asked)}")
    raise SettingsError(f"there is no stage {name!r}: {meant(name, asked)}")


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        record: Record,
        budget: Budget,
        written: str | int | None,
        threads: int | None,
        listener: PipelineListener,
    ) -> None:
        self.pipeline = pipeline
        self.record = record
        self.budget = budget
        self.written = written
        """The budget, as a user wrote it."""
        self.threads = threads
        self.listener = listener
        self._told = False

    def all(self, only: str | None, forced: list[str], dry_run: bool) -> Iterator[StageResult]:
        for line in self.pipeline.notes:
            self.listener.noted(line)
        for stage in stages(self.pipeline):
            verdict = judge(stage, self.record.of(stage.name), forced=stage.name in forced)
            if only is None or stage.name == only:
                yield self._stage(stage, verdict, dry_run)
                if only is not None:
                    return
            elif verdict.runs:
                raise SettingsError(
                    f"{stage.name} comes before {only} and is due ({verdict.why}): leave {option('only')} out"
                )

    def _stage(self, stage: Stage, verdict: Verdict, dry_run: bool) -> StageResult:
        more = ["--resume"] if verdict.resumes else []
        command = shown(stage.command(self.written, self.threads, *more)) if stage.words else ""
        if not verdict.runs:
            kept = StageResult(stage.name, stage.out, "kept", verdict.why, command, {})
            self.listener.ended(kept)
            return kept
        due = StageResult(stage.name, stage.out, "due", verdict.why, command, {})
        if dry_run:
            self.listener.ended(due)
            return due
        moved = None
        if verdict.what == "anew" and stage.name != "report" and self.record.holds_work(stage.out):
            moved = self.record.set_aside(stage.out)
            self.listener.noted(f"{stage.out} is now {moved}: remove it when you do not need it")
        self.record.note(stage, done=False, resumes=verdict.resumes)
        self.listener.began(due)
        figures = self._made(stage, more) if stage.words else self._fetched(stage)
        self.record.note(stage, done=True)
        made = StageResult(stage.name, stage.out, "made", verdict.why, command, figures, moved)
        self.listener.ended(made)
        return made

    # -- one stage

    def _made(self, stage: Stage, more: list[str]) -> dict[str, Any]:
        captured = not self.listener.shows_stages
        self._tell_memory()
        words = stage.command(self._memory(stage), self.threads, *more, host=self._host_memory(stage))
        words += ["--json", "--quiet"] if captured else ["--quiet"] if self.listener.quiet else []
        ended = run_stage(words, captured=captured)
        if ended.code != 0:
            raise self._failure(stage, ended)
        if not stage.finished:
            raise PipelineError(f"{stage.name} ended without {stage.done[0]}: run the same command again")
        figures = _figures(ended.output)
        if ended.asked_to_stop:
            # It was at its end already.
            self.record.note(stage, done=True)
            raise Interrupted
        return figures

    def _failure(self, stage: Stage, ended: Ended) -> RamletError:
        error = ended.error
        if ended.asked_to_stop:
            return error if isinstance(error, Interrupted) else Interrupted()
        if error is not None:
            given = self.written != self.pipeline.memory
            own = format_bytes(self._own())
            sentence = in_words_of_the_file(stage, error, self.pipeline.path, own=own, given=given)
        elif ended.code < 0:
            sentence = (
                f"it was ended from outside (signal {-ended.code}; 9 is often the system that is out of memory): "
                "give less memory, and run the same command to go on"
            )
        else:
            sentence = f"it ended with exit code {ended.code} and said nothing"
        failed = PipelineError(f"{stage.name}: {sentence}", **(error.facts if error is not None else {}))
        failed.code = max(1, ended.code)
        return failed

    def _memory(self, stage: Stage) -> str | int:
        # Of a GPU: a part of what is free is one of the device's memory, which only the stage knows.
        if stage.on_gpu and (self.written is None or str(self.written).strip().endswith(("%", "auto"))):
            return self.written or "auto"
        return self._less_own(self.budget)

    def _host_memory(self, stage: Stage) -> str | None:
        return None if stage.host_memory is None else self._less_own(Budget.parse(stage.host_memory))

    def _less_own(self, budget: Budget) -> str:
        """As a stage is told it: the whole, and what this process takes of it."""
        return f"{budget.total}B-{self._own()}B"

    def _tell_memory(self) -> None:
        """Once: a stage speaks of the budget that it has."""
        if not self._told:
            self._told = True
            own, left = format_bytes(self._own()), format_bytes(self._left(self.budget))
            self.listener.noted(f"memory: {own} of {self.budget} for the process that waits, {left} for a stage")

    @staticmethod
    def _own() -> int:
        return -(-(resident_memory() + OWN_GROWTH) // OWN_STEP) * OWN_STEP

    def _left(self, budget: Budget) -> int:
        own = self._own()
        budget.require(2 * own, "this process, which waits for the stages, and as much for a stage")
        return budget.total - own

    def _fetched(self, stage: Stage) -> dict[str, Any]:
        """Text that is not on this disk, made local files."""
        from ramlet.inputs.staging_process import stage_in_subprocess

        pipeline = self.pipeline
        sections = [each for each in (pipeline.learned, pipeline.prepared) if each is not None]
        inputs = dict.fromkeys([*pipeline.text, *(each for section in sections for each in section.text)])
        for given in inputs:
            if fetched(given, pipeline.reading.text_field):
                stage_in_subprocess(
                    [given],
                    fetched_to(pipeline, given),
                    reading=pipeline.reading,
                    progress=lambda _, done, total: self.listener.staged(done, total),
                )
        return {}


def _figures(output: str) -> dict[str, Any]:
    try:
        found = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}
