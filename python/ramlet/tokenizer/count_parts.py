"""Counting for a tokenizer in parts, which run anywhere that sees the folder.

    WORK/count.json        what is counted: the tasks and the settings; written before any part runs
    count   each task      its pieces and their counts -> WORK/counts
    sort    each of 64     that partition of all counts -> WORK/merged
    then one process learns the merges

The counts are the same sums as those of one process, so the merges are the same. A text file that is one document is
counted as a whole: only the splitting pattern knows where it may be cut, and only from its beginning.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramlet import __version__, _native
from ramlet.cluster import Executor, Report
from ramlet.errors import SettingsError, TokenizerError
from ramlet.runtime.atomic_files import remove_left, sync_folder, write_json
from ramlet.runtime.budget import Budget
from ramlet.runtime.folder_lock import PARTS_LOCK, Lock, alone, share
from ramlet.runtime.memory import peak_memory
from ramlet.runtime.meter import Meter
from ramlet.runtime.small_files import read_json_object
from ramlet.runtime.threads import fitting_threads
from ramlet.tokenizer.settings import TrainSettings

STAGES = {"count": ("counts", ".json"), "sort": ("merged", ".run")}
"""Where the parts of each are, and the ending of what a part writes last."""

Json = dict[str, Any]


def plan_counting(
    work: Path,
    settings: TrainSettings,
    files: Iterator[tuple[str, str, str, int, int]],
    signature: str,
    decoding: int,
    task_bytes: int | None = None,
) -> Json:
    """Divides the files into tasks, unless the same was done before: then what is counted is kept."""
    path = work / "count.json"
    work.mkdir(parents=True, exist_ok=True)
    (work / PARTS_LOCK).touch()  # which `share` expects, and does not create
    try:
        plan = read_json_object(path, TokenizerError)
        if plan["signature"] == signature and plan["ramlet"] == __version__:
            return plan
    except (OSError, KeyError, TokenizerError):
        pass
    # A worker of another run that commits its counts later would add them to those of this one.
    with alone(work / PARTS_LOCK, work):
        path.unlink(missing_ok=True)
        for name in ("counts", "merged", "inputs", "workers"):
            shutil.rmtree(work / name, ignore_errors=True)
        reading = settings.reading()
        tasks, *_ = _native.plan_tasks(
            files,
            work / "inputs",
            documents=reading["documents"],
            separator=reading["separator"],
            task_bytes=task_bytes,
            whole_documents=True,
        )
        plan = {
            "ramlet": __version__,
            "signature": signature,
            "tasks": tasks,
            "read": reading,
            "pattern": settings.pattern,
            "specials": list(settings.special_tokens),
            "decoding": decoding,
        }
        write_json(path, plan)
        sync_folder(work)
    return plan


def count_everywhere(work: Path, plan: Json, executor: Executor, report: Report) -> Json:
    """Runs the parts that are not done; returns the totals of all tasks, as the native core reports them."""
    for stage, count in (("count", plan["tasks"]), ("sort", _native.count_partitions())):
        remove_left(work / STAGES[stage][0])
        if left := unfinished(work, stage, count):
            executor.run(stage, left, report)
    return totals(work, plan["tasks"])


def unfinished(work: Path, stage: str, count: int) -> list[int]:
    folder, mark = STAGES[stage]
    done = set()
    if (work / folder).is_dir():
        with os.scandir(work / folder) as entries:
            numbers = (entry.name.removesuffix(mark) for entry in entries if entry.name.endswith(mark))
            done = {int(number) for number in numbers if number.isdigit()}
    return [index for index in range(count) if index not in done]


def totals(work: Path, tasks: int) -> Json:
    """The sums over all tasks."""
    found: Json = {"pieces": 0, "cut_pieces": 0, "spilled_runs": 0, "regex_failures": 0}
    read: Json = {}
    examples: list[str] = []
    for index in range(tasks):
        note = read_json_object(work / "counts" / f"{index:06}.json", TokenizerError)
        for name, own in (("pieces", "pieces"), ("cut_pieces", "cut_pieces"), ("spilled_runs", "runs")):
            found[name] += note[own]
        found["regex_failures"] += note["regex_failures"]
        counted = note["read"]
        examples += counted.pop("examples")[: EXAMPLES - len(examples)]
        read = {name: read.get(name, 0) + value for name, value in counted.items()}
    return {**found, "read": {**read, "examples": examples}}


EXAMPLES = 3
"""Of places that were skipped."""


def run_parts(folder: str, stage: str, own: Sequence[int], *, memory: int, threads: int) -> dict[str, int]:
    """For an executor: runs these parts in this process, which sees the folder; returns a few numbers."""
    work, budget = Path(folder), Budget(memory)
    with _shared(work), Meter(budget) as meter:
        try:
            plan = read_json_object(work / "count.json", TokenizerError)
        except FileNotFoundError:
            raise _nothing_planned(work) from None
        decoding = plan["decoding"]
        threads = fitting_threads(budget, threads, lambda count: _native.least_memory(count, 0, decoding), "counting")
        for index in own:
            room = max(budget.available(), _native.least_memory(threads, 0, decoding))
            if stage == "sort":
                _native.merge_counts(work, plan["tasks"], index, memory=room // 2)
                continue
            _native.count_task(
                work,
                index,
                read=plan["read"],
                pattern_name=plan["pattern"],
                specials=plan["specials"],
                threads=threads,
                memory=room,
                resident_limit=budget.total,
                decoding=decoding,
            )
        peak = max(meter.peak, peak_memory())
        return {"bytes": _bytes_read(work, own) if stage == "count" else 0, "peak": peak}


def _shared(work: Path) -> Lock:
    try:
        return share(work / PARTS_LOCK)
    except FileNotFoundError:
        raise _nothing_planned(work) from None


def _nothing_planned(work: Path) -> SettingsError:
    return SettingsError(f"nothing is planned in {work}, as this machine sees it: run the same command again")


def _bytes_read(work: Path, own: Sequence[int]) -> int:
    notes = (read_json_object(work / "counts" / f"{index:06}.json", TokenizerError) for index in own)
    return sum(int(note["read"]["bytes_on_disk"]) for note in notes)
