"""Some parts of one stage, for a process that a scheduler or a cluster started.

    ramlet prepare corpus/ --out data --stage plan
    ramlet prepare corpus/ --out data --stage scan --part 3/16       in 16 processes, on any machines
    ...
    ramlet prepare corpus/ --out data --stage finish

Any number of processes may run parts of one stage at once, and the same part twice: each commits its own results under
their final names, whole or not at all, and all of them are the same. The next stage needs all parts of the one before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ramlet.cluster.parts import Slice
from ramlet.cluster.usage import Worker
from ramlet.errors import SettingsError, option
from ramlet.inputs.sources import Paths
from ramlet.inputs.staging_folder import Progress
from ramlet.preparing.core import Core
from ramlet.preparing.finish import Prepared, finish
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.run import Run, opened
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import NAMES, STAGES, parts, require_ready, unfinished
from ramlet.preparing.work import Work, command_of, nothing_planned
from ramlet.runtime.budget import Budget
from ramlet.runtime.memory import peak_memory
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class StageDone:
    """What a process did of a stage."""

    path: Path
    stage: str
    parts: int
    """Its own, done now or before."""
    of: int
    already_done: bool = False
    """The whole dataset is finished."""
    prepared: Prepared | None = None
    """With `finish`."""


def prepare_stage(
    inputs: Paths,
    out: Path,
    settings: PrepareSettings,
    stage: str,
    part: Slice,
    *,
    meter: Meter,
    threads: int | None = None,
    append: bool = False,
    own_tokenizer: bool = False,
    shard_bytes: int | None = None,
    task_bytes: int | None = None,
    progress: Progress | None = None,
) -> StageDone:
    """Runs a slice of a stage; a stage with one part is done by the first slice."""
    if stage not in NAMES:
        raise SettingsError(f"there is no stage {stage!r}: give {option('stage')} one of {', '.join(NAMES)}")
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    if stage == "plan":
        if part.number > 1:
            return StageDone(out, stage, 0, 1)
        with opened(out, settings, append=append) as folder:
            run = Run(folder, settings, meter, threads, progress)
            done = run.plan(names, append, own_tokenizer and append, shard_bytes, task_bytes, exclude_too=False)
            if done is None:
                run.save_tokenizer()
            return StageDone(out, stage, 1, 1, already_done=done is not None)
    folder = _folder(out, npy=settings.output_format == "npy")
    command = command_of(names, settings, append=append, shard_bytes=shard_bytes, task_bytes=task_bytes)
    finished = StageDone(out, stage, 0, 0, already_done=True)
    if stage == "finish":
        if part.number > 1:
            return StageDone(out, stage, 0, 1)
        with folder:
            if _is_finished(folder, command):
                with folder.alone():
                    folder.finish()  # what was left when it was killed behind the manifest
                return finished
            work = _load(folder, command)
            require_ready(folder.work, work.plan, stage)
            prepared = finish(_core(work, meter, threads, stage, progress))
            return StageDone(out, stage, 1, 1, prepared=prepared)
    try:
        shared = folder.share()
    except FileNotFoundError:
        if _is_finished(folder, command):
            return finished
        raise nothing_planned(folder) from None
    with shared:
        if _is_finished(folder, command):
            return finished
        work = _load(folder, command)
        count = parts(folder.work, work.plan, stage)
        own = part.of(count)
        if own:
            require_ready(folder.work, work.plan, stage)
            if stage == "layout":
                folder.refuse_strangers()
            if stage == "exclude":
                Run(folder, work.settings, meter, threads, progress).read_excluded(work.planned.excluded)
            else:
                left = set(unfinished(folder.work, work.plan, stage)).intersection(own)
                worker = Worker(folder.work, os.uname().nodename)
                worker.begins(stage, own)
                _core(work, meter, threads, stage, progress).run(stage, own)
                worker.ends(len(left), max(meter.peak, peak_memory()))
        return StageDone(out, stage, len(own), count)


def _folder(out: Path, *, npy: bool) -> OutFolder:
    return OutFolder(out.parent if npy else out, npy=out if npy else None)


def _load(folder: OutFolder, command: str) -> Work:
    work = Work.load(folder)
    if work.command != command:
        raise SettingsError(
            f"the plan in {folder.work} is of other inputs or settings: give the same command for every stage, "
            f"or plan again with {option('stage', 'plan')}"
        )
    for path, _ in work.cached:
        if not os.path.exists(path):
            raise SettingsError(f"this machine does not see {path} of the dedup cache: share {option('dedup_cache')}")
    return work


def _is_finished(folder: OutFolder, command: str) -> bool:
    """Whether the dataset has the result of this command: a scheduler may repeat what is long done."""
    manifest, plan = folder.manifest(), folder.plan()
    if manifest is None:
        return False
    # With another plan, the same command is adding a run of inputs that have changed.
    runs = [run for run in manifest.runs if plan is None or run["id"] == plan["id"]]
    return any(run.get("command") == command for run in runs)


def _core(work: Work, meter: Meter, threads: int | None, stage: str, progress: Progress | None = None) -> Core:
    """With the tokenizer, if the stage needs it: how many threads fit depends on what it takes."""
    path = work.folder.work / "tokenizer.json"
    # That of a character vocabulary is learned by the first who writes.
    known = STAGES[stage].encodes and path.exists()
    return Core(work, meter, threads, _tokenizer(path, work.plan["id"]) if known else None, progress)


@lru_cache(maxsize=1)
def _tokenizer(path: Path, identity: str) -> Tokenizer:
    """Loaded once for all the parts that a worker runs."""
    return Tokenizer.load(path)


def run_parts(folder: str, stage: str, own: Sequence[int], *, memory: int, threads: int) -> dict[str, int]:
    """For an executor: runs these parts in this process, which sees the folder; returns a few numbers."""
    out = Path(folder)
    opened = _folder(out, npy=not (out / ".work").is_dir())
    try:
        shared = opened.share()
    except FileNotFoundError:
        raise nothing_planned(opened) from None
    with shared, Meter(Budget(memory)) as meter:
        work = Work.load(opened)
        _core(work, meter, threads, stage).run(stage, own)
        return {"bytes": _bytes_read(work, stage, own), "peak": max(meter.peak, peak_memory())}


def _bytes_read(work: Work, stage: str, own: Sequence[int]) -> int:
    if stage not in ("scan", "write"):
        return 0
    notes = (work.folder.note(STAGES[stage].folder, index) for index in own)
    return sum(int(note["input"]["bytes_on_disk"]) for note in notes)
