"""The main flow of `prepare`: inputs -> text that is cleaned, deduplicated, tokenized and written as shards.

    result = prepare_to(["corpus/"], Path("data"), PrepareSettings(tokenizer="gpt2"), meter=meter)

    plan      what there is to do (`plan.py`), noted in OUT/.work (`work.py`)
    ...       the stages of the native core (`stages.py`), each in numbered parts that commit their own results
    finish    tokenizer.json, stats.json and, last, the manifest (`finish.py`)

The same command resumes after a kill. An executor (`ramlet.cluster`) decides where the parts run: in this process, or
on a cluster; `parts.py` runs some of them for a scheduler. The budget changes how long it takes, never a byte of the
result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

from ramlet.cluster import Executor, Job, Report, Status
from ramlet.cluster.here import ThisMachine
from ramlet.errors import SettingsError, SourceChanged, SourceError, option
from ramlet.inputs.paths import check_path
from ramlet.inputs.sources import Paths
from ramlet.inputs.staging_folder import Progress
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.preparing import exclude
from ramlet.preparing import tokenizer as prepare_tokenizer
from ramlet.preparing.core import Core
from ramlet.preparing.finish import Prepared, check_can_begin, end_if_empty, finish
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.plan import make_plan
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import CORE, STAGES, parts, unfinished
from ramlet.preparing.work import Work, command_of
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["Prepared", "prepare_to"]


def prepare_to(
    inputs: Paths,
    out: Path,
    settings: PrepareSettings,
    *,
    meter: Meter,
    threads: int | None = None,
    append: bool = False,
    own_tokenizer: bool = False,
    tokenizer: Tokenizer | None = None,
    shard_bytes: int | None = None,
    task_bytes: int | None = None,
    cluster: str | None = None,
    auto_memory: bool = False,
    progress: Progress | None = None,
    report: Report | None = None,
) -> Prepared:
    """Prepares a dataset within the meter's budget.

    `own_tokenizer`: append with the tokenizer of the dataset. `tokenizer` is a loaded one that replaces that of the
    settings. `shard_bytes` is the size of a shard if it is given in bytes instead of tokens. `task_bytes`, the size of
    a task, is for tests. With a `cluster`, `auto_memory` divides the memory of its nodes among their workers instead
    of giving each the meter's budget; `report` gets its status, `progress` that of this process.
    """
    with opened(out, settings, append=append) as folder:
        run = Run(folder, settings, meter, threads, progress, tokenizer)
        with run.executor(cluster, auto_memory) as executor:
            done = run.plan(inputs, append, own_tokenizer and append, shard_bytes, task_bytes)
            return done or run.work_through(executor, run.as_progress if report is None else report)


@contextmanager
def opened(out: Path, settings: PrepareSettings, *, append: bool) -> Iterator[OutFolder]:
    """The folder that is written to, locked, if it can be used with these settings."""
    check_path(out)
    npy = out if settings.output_format == "npy" else None
    if npy and (append or settings.pack):
        raise SettingsError(f"an npy file is one row of ids: remove {option('append')} and {option('pack')}")
    with OutFolder(out.parent if npy else out, npy=npy) as folder:
        if append and folder.manifest() is None:
            raise SettingsError(f"no dataset in {out} to append to: remove {option('append')} to create one")
        yield folder


@dataclass
class Run:
    folder: OutFolder
    settings: PrepareSettings
    meter: Meter
    threads: int | None
    progress: Progress | None
    tokenizer: Tokenizer | None = None
    excluded: exclude.Excluded | None = None
    work: Work = field(init=False)

    @contextmanager
    def executor(self, cluster: str | None, auto_memory: bool) -> Iterator[Executor]:
        """Where the parts run; a cluster that cannot be reached is noticed before anything is planned."""
        if cluster is None:
            yield ThisMachine(self._run_here)
            return
        from ramlet.cluster.ray_executor import RayExecutor, connected

        with connected(cluster):
            budget = self.meter.budget
            memory = 0 if auto_memory or budget is None else budget.total
            job = Job("ramlet.preparing.parts", "", memory, self.threads or 1, os.getcwd())
            self.threads = job.threads
            yield RayExecutor(job, self._placed, self._samples)

    def _placed(self, job: Job) -> Job:
        return replace(job, folder=os.path.abspath(self.work.result), work=os.path.abspath(self.folder.work))

    def _samples(self) -> tuple[Path, list[tuple[str, int]]]:
        return self.folder.work, [*self.work.planned.samples, *self.work.cached]

    def plan(
        self,
        inputs: Paths,
        append: bool,
        own_tokenizer: bool,
        shard_bytes: int | None,
        task_bytes: int | None,
        *,
        exclude_too: bool = True,
    ) -> Prepared | None:
        """Plans the run, or resumes it; returns the result if it is there already."""
        before = self.folder.manifest()
        own = self.folder.out / before.tokenizer.file if before and own_tokenizer else None
        self.tokenizer = self.tokenizer or prepare_tokenizer.choose(self.settings, own)
        names = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        command = command_of(names, self.settings, append=append, shard_bytes=shard_bytes, task_bytes=task_bytes)
        if shard_bytes is not None:
            width = 4 if self.tokenizer is not None and self.tokenizer.vocab_size > 1 << 16 else 2
            self.settings = replace(self.settings, tokens_per_shard=max(1, shard_bytes // width))
        self.meter.stage("planning")
        staged = self.folder.work / "staged"
        local = stage_in_subprocess(names, staged, reading=self.settings, progress=self.progress)
        self.excluded = exclude.find(self.settings, staged, self.progress)
        planned = make_plan(
            self.folder,
            self.settings,
            self.tokenizer,
            local,
            before=before if append else None,
            excluded=self.excluded,
            task_bytes=task_bytes,
        )
        if not planned.inputs["bytes"]:
            raise SourceError("no text to prepare: every input is empty")
        self.work = Work(self.folder, self.settings, planned, command, append)
        self.core = Core(self.work, self.meter, self.threads, self.tokenizer, self.progress)
        if done := check_can_begin(self.work, before, self.tokenizer):
            return done
        self._resume_or_begin()
        if exclude_too:
            try:
                self.read_excluded()
            except (SourceError, SettingsError):
                self.folder.abandon()
                raise
        return None

    def _resume_or_begin(self) -> None:
        noted = self.folder.plan()
        # With a character vocabulary these are known only after the scan.
        learned = {"end_id": None, "wide": False} if self.work.plan["characters"] else {}
        if noted is not None and {**noted, **learned} == self.work.plan:
            self.folder.refuse_strangers()
            self.work.planned.plan = noted
        else:
            self.folder.begin(self.work.plan)
        self.folder.remove_left()
        self.work.save()

    def read_excluded(self, planned: str | None = None) -> None:
        """The n-grams of the evaluation set, unless they are there already; `planned` is its identity in the plan."""
        self.excluded = self.excluded or exclude.find(self.settings, self.folder.work / "staged", self.progress)
        if self.excluded is None:
            return
        if planned not in (None, self.excluded.identity):
            names = ", ".join(self.settings.exclude)
            raise SourceChanged(f"{names} changed since the run was planned: run {option('stage', 'plan')} again")
        self.meter.stage("excluding")
        budget = self.meter.budget or Budget.parse("auto")
        memory = max(0, budget.available() - self.excluded.decoding)
        self.excluded.build(self.folder.work, memory, self.progress)

    def work_through(self, executor: Executor, report: Report) -> Prepared:
        """All stages, then the result."""
        saving = Thread(target=self._try_to_save)  # while the core scans
        saving.start()
        for stage in CORE:
            if STAGES[stage].encodes and saving.is_alive():
                saving.join()
            if stage == "write":
                self.save_tokenizer()
                self.core.load_tokenizer()  # learned from what was scanned, if it is one of characters
            if stage == "layout" and (ended := end_if_empty(self.core)):
                return ended
            if stage in ALONE:
                self._run_here(stage, range(parts(self.folder.work, self.work.plan, stage)))
            elif left := self._left(stage, executor):
                executor.run(stage, left, report)
        return finish(self.core)

    def _left(self, stage: str, executor: Executor) -> range | list[int]:
        """The core finds out by itself which parts are done, and that a shard was removed meanwhile."""
        work, plan = self.folder.work, self.work.plan
        every = isinstance(executor, ThisMachine) or stage == "assemble"
        return range(parts(work, plan, stage)) if every else unfinished(work, plan, stage)

    def _run_here(self, stage: str, parts: range | list[int] | Any) -> None:
        if parts:
            self.core.run(stage, parts)

    def _try_to_save(self) -> None:
        with suppress(Exception):  # the second attempt, in the main thread, raises it
            self.save_tokenizer()

    def save_tokenizer(self) -> None:
        """Where every process that encodes finds it."""
        path = self.folder.work / "tokenizer.json"
        if self.tokenizer is not None and not path.exists():
            self.tokenizer.save(path, format="json")

    def as_progress(self, status: Status) -> None:
        if self.progress is not None:
            self.progress(STAGES[status.stage].reports, status.done, status.parts)


ALONE = ("decide", "layout")
"""Stages with one part, that one process does: where the command was given."""
