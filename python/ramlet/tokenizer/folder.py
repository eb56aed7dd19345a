"""Tokenizer training into a folder: an interrupted run resumes, a finished one is recognized.

A folder goes through these states, and a kill at any moment leaves one of them:

    OUT/.work/...                           counting; the same command resumes from the counts in it
    OUT/.work/... tokenizer.json            merged, almost finished; the counts are still there
    OUT/tokenizer.json stats.json           finished; stats.json, written last, says what it was trained on
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramlet.cluster import Job, Report
from ramlet.cluster.usage import by_node
from ramlet.errors import SettingsError, TokenizerError, option
from ramlet.runtime.atomic_files import is_temporary, remove, replacing, write_json
from ramlet.runtime.digest import digest
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.meter import Meter
from ramlet.runtime.small_files import open_regular, read_json_object
from ramlet.tokenizer.count_parts import count_everywhere, plan_counting
from ramlet.tokenizer.files import tokenizer_json
from ramlet.tokenizer.settings import TrainSettings
from ramlet.tokenizer.train import Corpus, Count, Inputs, Progress, learn


@dataclass(frozen=True)
class Result:
    """What `train_to_folder` did."""

    statistics: dict[str, Any]
    """As in stats.json."""

    already_done: bool
    """Nothing was read: the folder already had this result."""


def train_to_folder(
    inputs: Inputs,
    out: str | os.PathLike[str],
    settings: TrainSettings,
    *,
    meter: Meter,
    threads: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    cluster: str | None = None,
    auto_memory: bool = False,
    report: Report | None = None,
    task_bytes: int | None = None,
) -> Result:
    """Trains into OUT/tokenizer.json and OUT/stats.json; after an interruption, the same call resumes.

    With `cluster` the nodes of a Ray cluster count, each worker with `threads` and within the budget, or with
    `auto_memory` its share of its node; this process learns the merges. `report` gets their status. `task_bytes`, the
    size of a task, is for tests.
    """
    out = Path(out)
    work_dir = _work_dir(out, spill_dir)
    # Inside an input folder they would change the input of the next run, which is then another tokenizer.
    corpus = Corpus(settings, inputs=inputs, without=[os.path.realpath(path) for path in (out, work_dir)])
    if cluster is not None and (settings.kind != "bpe" or not corpus.lasting):
        what = "standard input" if settings.kind == "bpe" else f"a tokenizer of {option('kind', settings.kind)}"
        raise SettingsError(f"{what} is read by one machine: remove {option('cluster')}")
    signature = ""  # of all that decides the result; an input that can be read only once cannot be compared
    if corpus.lasting:
        parts = [b"ramlet result 1", corpus.fingerprint.encode(), json.dumps(asdict(settings)).encode()]
        signature = digest(iter(parts))
    with hold(out, "tokenizer train"):
        finished = _finished(out, signature)
        if finished is not None:
            _remove_work(out, spill_dir)
            return Result(finished, already_done=True)
        if not force:
            _refuse_others(out)
        try:
            # Created even if the counts go elsewhere: it marks the folder as ours until it is finished.
            (out / ".work").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"cannot write into {out}: {error.strerror}; choose another {option('out')}") from None
        meter.stage("counting")
        budget = meter.budget
        memory = 0 if auto_memory or budget is None else budget.total
        with _counting(cluster, corpus, settings, memory, work_dir, threads or 1, report, task_bytes) as count:
            model, statistics = learn(
                corpus,
                settings,
                meter=meter,
                work_dir=work_dir,
                threads=threads if cluster is None else None,
                progress=progress,
                count=count,
            )
        if nodes := by_node(work_dir):
            statistics["nodes"] = nodes
        meter.stage("writing")
        remove(out / "stats.json")  # of a result that `force` replaces: never next to another's tokenizer.json
        with replacing(out / "tokenizer.json") as file:
            tokenizer_json.write(model, file)
        statistics["result"] = {"signature": signature, "tokenizer": _file_digest(out / "tokenizer.json")}
        statistics["memory"] = meter.summary()
        write_json(out / "stats.json", statistics)
        _remove_work(out, spill_dir)
    return Result(statistics, already_done=False)


@contextmanager
def _counting(
    cluster: str | None,
    corpus: Corpus,
    settings: TrainSettings,
    memory: int,
    work: Path,
    threads: int,
    report: Report | None,
    task_bytes: int | None,
) -> Iterator[Count | None]:
    """What counts on a cluster; None to count here."""
    if cluster is None:
        yield None
        return
    from ramlet.cluster.ray_executor import RayExecutor, connected

    place = os.path.abspath(work)
    job = Job("ramlet.tokenizer.count_parts", place, memory, threads, os.getcwd(), place)

    def count() -> dict[str, Any]:
        files = corpus.files()
        assert files is not None
        plan = plan_counting(work, settings, files, corpus.signature, corpus.decoding, task_bytes)
        executor = RayExecutor(job, lambda job: job, lambda: (work, corpus.samples()))
        return count_everywhere(work, plan, executor, report or (lambda _: None))

    with connected(cluster):
        yield count


def _finished(out: Path, signature: str) -> dict[str, Any] | None:
    try:
        statistics = read_json_object(out / "stats.json", TokenizerError)
        noted = statistics["result"]
        same = signature and noted["signature"] == signature
        return statistics if same and noted["tokenizer"] == _file_digest(out / "tokenizer.json") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refuse_others(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise SettingsError(f"{out} is a file: give a folder to write the tokenizer into")
    names = {entry for entry in os.listdir(out) if not is_temporary(entry)}
    unfinished = ".work" in names
    names -= {".work", "report.html"}
    if unfinished and names <= {"tokenizer.json"}:
        return
    if names == {"tokenizer.json", "stats.json"}:
        raise SettingsError(
            f"{out} has a tokenizer trained with other inputs or settings: "
            f"{option('force')} replaces it, or choose another folder"
        )
    if names:
        raise SettingsError(
            f"{out} is not empty (it contains {sorted(names)[0]}): "
            f"choose another folder, or {option('force')} to write into it"
        )


def _work_dir(out: Path, spill_dir: str | os.PathLike[str] | None) -> Path:
    if spill_dir is None:
        return out / ".work"
    return Path(spill_dir) / f"ramlet-{digest(iter([os.fsencode(out.resolve())]))[:12]}"


def _remove_work(out: Path, spill_dir: str | os.PathLike[str] | None) -> None:
    for folder in {out / ".work", _work_dir(out, spill_dir)}:
        shutil.rmtree(folder, ignore_errors=True)


def _file_digest(path: Path) -> str:
    def blocks() -> Iterator[bytes]:
        with open_regular(path, TokenizerError) as file:
            while block := file.read(1 << 16):
                yield block

    return digest(blocks())
