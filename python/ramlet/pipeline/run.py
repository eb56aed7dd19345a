"""`ramlet.run_pipeline`: a file -> tokenizer, dataset, model and report, rebuilding only what changed.

    result = ramlet.run_pipeline("pipeline.yaml", memory="2GB")
    [(stage.name, stage.what) for stage in result.stages], result.peak

Every stage is its own command in its own process (process.py says why), within one budget: the total minus what this
process uses. WORK/pipeline.json records what was made, and from what (record.py); due.py decides what a change makes
out of date. After any interruption, even kill -9, the same call continues: between stages from the record, within a
stage as the stage itself can.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ramlet.errors import Interrupted, PipelineError, RamletError, SettingsError, option
from ramlet.inputs.paths import check_path
from ramlet.pipeline.due import Decision, decide
from ramlet.pipeline.executor import Executor, StageExit
from ramlet.pipeline.file import Pipeline, load
from ramlet.pipeline.process import run_stage
from ramlet.pipeline.record import Record
from ramlet.pipeline.stages import NAMES, Stage, fetch_folder, names_of, refuse_early, remote_text, stages
from ramlet.pipeline.wording import with_keys
from ramlet.runtime.budget import Budget, format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.settled import REPORT_BYTES, waiting_memory
from ramlet.settings.names import meant


@dataclass(frozen=True)
class StageResult:
    """What happened to a stage."""

    name: str
    path: str
    what: str
    """`kept`, `made`, or, in a dry run, `due`."""
    why: str
    command: str
    """As a user would type it."""
    figures: dict[str, Any]
    """What the command printed as JSON; empty if the stage was kept, or its output was shown instead."""
    moved: str | None = None
    """Where the previous result was moved."""


@dataclass(frozen=True)
class PipelineResult:
    work: str
    stages: tuple[StageResult, ...]
    peak: int
    """RAM in bytes, of this process and all stages."""
    budget: int | None
    """What `peak` may be; None if training ran on a GPU without a limit on RAM."""


class PipelineListener:
    """Called as things happen; the command line shows them."""

    shows_stages = False
    """Whether stages print their own output."""
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
    executor: Executor | None = None,
) -> PipelineResult:
    """Makes what the file asks for and does not exist yet, never using more than `memory`.

    `memory` and `threads` override the file's. `only` is the one stage to run: text, tokenizer, data, training or
    report; the stages in `force` are rebuilt, the old results moved aside. With `dry_run` nothing runs: the result says
    what is due. `executor` runs a stage's command, by default in a process of its own. A stage that fails raises
    PipelineError with its message.

        result = ramlet.run_pipeline("pipeline.yaml", memory="2GB")
        [(stage.name, stage.what) for stage in result.stages]  # [("tokenizer", "kept"), ("data", "made"), ...]
    """
    check_path(path)
    pipeline = load(path)
    forced = [force] if isinstance(force, str) else list(force)
    for name in [*forced, *([only] if only is not None else [])]:
        _check_name(name, names_of(pipeline), pipeline.path)
        if only not in (None, name):
            raise SettingsError(
                f"{option('only', only)} excludes {name}, which {option('force')} asks for: drop one of the two"
            )
    given = memory if memory is not None else pipeline.memory
    budget = Budget.parse(given)
    refuse_early(pipeline)
    with Record(pipeline.work, writes=not dry_run) as record, Meter(budget) as meter:
        record.claim(pipeline.path)
        run = _Run(
            pipeline,
            record,
            budget,
            written=str(budget.total) if isinstance(given, Budget) else given,
            threads=threads or pipeline.threads,
            listener=listener or PipelineListener(),
            executor=executor or run_stage,
        )
        results = tuple(run.all(only, forced, dry_run))
    return PipelineResult(pipeline.work, results, meter.peak, run.ram_budget())


def _check_name(name: str, known: list[str], path: str) -> None:
    if name in known:
        return
    if name in NAMES:
        raise SettingsError(f"{path} has no stage {name}: its stages are {', '.join(known)}")
    raise SettingsError(f"unknown stage {name!r}: {meant(name, known)}")


@dataclass
class _Run:
    pipeline: Pipeline
    record: Record
    budget: Budget
    written: str | int | None
    """The budget, as the user wrote it."""
    threads: int | None
    listener: PipelineListener
    executor: Executor

    def __post_init__(self) -> None:
        self._ran: list[Stage] = []
        self._ends_with_report = False

    def all(self, only: str | None, forced: list[str], dry_run: bool) -> Iterator[StageResult]:
        for line in self.pipeline.notes:
            self.listener.noted(line)
        self._ends_with_report = "report" in names_of(self.pipeline) and only in (None, "report")
        for stage in stages(self.pipeline):
            decision = decide(stage, self.record.of(stage.name), forced=stage.name in forced)
            if only is None or stage.name == only:
                yield self._stage(stage, decision, dry_run)
                if only is not None:
                    return
            elif decision.due:
                raise SettingsError(
                    f"{stage.name} comes before {only} and is due ({decision.why}): run without {option('only')}"
                )

    def _stage(self, stage: Stage, decision: Decision, dry_run: bool) -> StageResult:
        command = ""
        if stage.command:
            argv = stage.argv(resume=decision.resumes, memory=self.written, threads=self.threads)
            command = shlex.join(["ramlet", *argv])
        what = "due" if decision.due else "kept"
        result = StageResult(stage.name, stage.out, what, decision.why, command, {})
        if decision.due and not dry_run:
            moved = None
            if decision.action == "rebuild" and stage.name != "report" and self.record.holds_work(stage.out):
                moved = self.record.set_aside(stage.out, stage.options.get("dedup_cache"))
                self.listener.noted(f"{stage.out} is now {moved}: remove it when you no longer need it")
            self.record.note(stage, done=False, resumes=decision.resumes)
            self.listener.began(result)
            figures = self._run(stage, decision.resumes) if stage.command else self._fetch()
            self.record.note(stage, done=True)
            result = replace(result, what="made", figures=figures, moved=moved)
        self.listener.ended(result)
        return result

    # -- one stage

    def _run(self, stage: Stage, resume: bool) -> dict[str, Any]:
        captured = not self.listener.shows_stages
        if not self._ran:
            self._note_memory()
        self._ran.append(stage)
        argv = stage.argv(
            resume=resume,
            memory=self._memory(stage),
            host_memory=None if stage.host_memory is None else self._with_own(Budget.parse(stage.host_memory)),
            threads=self.threads,
            json=captured,
            quiet=captured or self.listener.quiet,
        )
        ended = self.executor(argv, captured=captured)
        if ended.code != 0:
            raise self._failure(stage, ended)
        if not stage.finished:
            missing = next((path for path in stage.done if not os.path.exists(path)), stage.done[0])
            raise PipelineError(f"{stage.name} ended without {missing}: run the same command again")
        if ended.asked_to_stop:
            # It had finished anyway.
            self.record.note(stage, done=True)
            raise Interrupted
        return _last_line(ended.output)

    def _failure(self, stage: Stage, ended: StageExit) -> RamletError:
        error = ended.error
        if ended.asked_to_stop:
            return error if isinstance(error, Interrupted) else Interrupted()
        if error is not None:
            given = self.written != self.pipeline.memory
            sentence = with_keys(stage, error, self.pipeline.path, own=format_bytes(waiting_memory()), given=given)
        elif ended.code < 0:
            sentence = (
                f"it was killed by signal {-ended.code} (9 often means that the system is out of memory): "
                "give less memory, and run the same command to continue"
            )
        else:
            sentence = f"it ended with exit code {ended.code} and no message"
        failed = PipelineError(f"{stage.name}: {sentence}", **(error.facts if error is not None else {}))
        failed.code = max(1, ended.code)
        return failed

    def _memory(self, stage: Stage) -> str | int:
        # On a GPU, a percentage is of the device's free memory, which only the stage knows.
        if stage.on_gpu and (self.written is None or str(self.written).strip().endswith(("%", "auto"))):
            return self.written or "auto"
        return self._with_own(self.budget)

    def ram_budget(self) -> int | None:
        """What all that ran may use of RAM: on a GPU, `memory` is the device's, and `host_memory` limits RAM."""
        on_gpu = [stage for stage in self._ran if stage.on_gpu]
        if not on_gpu:
            return self.budget.total
        if on_gpu[0].host_memory is None:
            return None
        host = Budget.parse(on_gpu[0].host_memory).total
        return host if len(self._ran) == 1 else max(host, self.budget.total)

    def _with_own(self, budget: Budget) -> str:
        """A budget as a stage is given it: the total, minus what this process uses of it."""
        return f"{budget.total}B-{waiting_memory()}B"

    def _note_memory(self) -> None:
        own = waiting_memory()
        if self._ends_with_report:  # now, not after hours of training
            parts = {"the report": REPORT_BYTES, "this process, which waits for the stages": own}
            self.budget.require(own + REPORT_BYTES, parts)
        else:
            self.budget.require(2 * own, "this process, which waits for the stages, and as much for a stage")
        left = format_bytes(self.budget.total - own)
        self.listener.noted(
            f"memory: {format_bytes(own)} of {self.budget} for the process that waits, {left} for a stage"
        )

    def _fetch(self) -> dict[str, Any]:
        """Makes text that is not on this disk local files."""
        from ramlet.inputs.staging_process import stage_in_subprocess

        for given in remote_text(self.pipeline):
            stage_in_subprocess(
                [given],
                fetch_folder(self.pipeline, given),
                reading=self.pipeline.reading,
                progress=lambda _, done, total: self.listener.staged(done, total),
            )
        return {}


def _last_line(output: str) -> dict[str, Any]:
    try:
        found = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}
