"""The main flow of `prepare`: inputs -> text that is cleaned, deduplicated, tokenized and written as shards.

    result = prepare_to(["corpus/"], Path("data"), PrepareSettings(tokenizer="gpt2"), meter=meter)

    plan      the inputs as a list of tasks that depends only on the inputs and the settings
    exclude   the n-grams of the evaluation set                     with exclude
    scan      each task: read, clean, compare with them, hash       with exclude or dedup, or for a character vocabulary
    settle    each partition of the hashes: find the duplicates     with dedup
    write     each task: read, clean, drop duplicates, tokenize
    pair      each partition of the band keys: documents that may be similar    with near
    near      each task: compare them, drop near-duplicates                     with near
    assemble  the tokens of all tasks, in order, as shards
    finish    tokenizer.json, stats.json and, last, the manifest

The native core runs the tasks. Each commits its own result, so the same command resumes after a kill, and `run_part`
can run any of them anywhere. The budget changes how long it takes, never a byte of the result.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

from ramlet import __version__, _native
from ramlet.dataset.duplicates import FILE as NEAR_DUPLICATES
from ramlet.dataset.ledger import Ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Split
from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.paths import check_path
from ramlet.inputs.sources import Paths
from ramlet.inputs.staging_folder import Progress
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.preparing import exclude, near
from ramlet.preparing import tokenizer as prepare_tokenizer
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.manifest import add_run, check_same, manifest_of_run, run_ledger, skipped_records, why_empty
from ramlet.preparing.plan import make_plan
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.stages import CACHE_BYTES, ENCODER_BYTES, LEAST_CACHE, decoder_of, memory_needed, run_stage
from ramlet.runtime.atomic_files import replacing, write_json
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import fitting_threads
from ramlet.tokenizer.engines import NativeEngine
from ramlet.tokenizer.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`.

    prepared: ramlet.Prepared = ramlet.prepare("corpus/", "my-dataset", tokenizer="gpt2")
    prepared.path, prepared.manifest["splits"]["train"]["tokens"], prepared.already_done
    """

    path: Path
    """The dataset's folder, or the `.npy` file."""

    manifest: Json = field(repr=False)
    statistics: Json = field(repr=False)
    already_done: bool
    """Nothing was read: the folder had this result already."""
    nothing_new: str = field(default="", repr=False)
    """Why an append added nothing and left the dataset unchanged; empty if it added something."""


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
    progress: Progress | None = None,
) -> Prepared:
    """Prepares a dataset within the meter's budget.

    `own_tokenizer`: append with the tokenizer of the dataset. `tokenizer` is a loaded one that replaces that of the
    settings. `shard_bytes` is the size of a shard if it is given in bytes instead of tokens. `task_bytes`, the size of
    a task, is for tests.
    """
    check_path(out)
    npy = out if settings.output_format == "npy" else None
    if npy and (append or settings.pack):
        raise SettingsError(f"an npy file is one row of ids: remove {option('append')} and {option('pack')}")
    folder = OutFolder(out.parent if npy else out, npy=npy)
    with folder:
        if append and folder.manifest() is None:
            raise SettingsError(f"no dataset in {out} to append to: remove {option('append')} to create one")
        run = _Run(folder, settings, meter, threads, progress, tokenizer)
        return run.run(inputs, append, own_tokenizer and append, shard_bytes, task_bytes)


@dataclass
class _Run:
    folder: OutFolder
    settings: PrepareSettings
    meter: Meter
    wanted_threads: int | None
    progress: Progress | None
    given_tokenizer: Tokenizer | None
    plan: Json = field(default_factory=dict)
    inputs: Json = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    excluded: exclude.Excluded | None = None
    threads: int = 1
    working: int = 0
    """Bytes that the work takes, without the word cache."""

    def __post_init__(self) -> None:
        self.budget = self.meter.budget or Budget.parse("auto")

    def run(
        self, inputs: Paths, append: bool, own_tokenizer: bool, shard_bytes: int | None, task_bytes: int | None
    ) -> Prepared:
        before = self.folder.manifest()
        own = self.folder.out / before.tokenizer.file if before and own_tokenizer else None
        tokenizer = self.given_tokenizer or prepare_tokenizer.choose(self.settings, own)
        if shard_bytes is not None:
            width = 4 if tokenizer is not None and tokenizer.vocab_size > 1 << 16 else 2
            self.settings = replace(self.settings, tokens_per_shard=max(1, shard_bytes // width))
        self.meter.stage("planning")
        self._plan(inputs, tokenizer, before if append else None, task_bytes)
        if before is not None and _has_run(before, self.plan["id"]):
            self.folder.check_whole(before)
            noted = self.folder.plan()
            # The work of an interrupted append is kept: the same append resumes it.
            if noted is None or _has_run(before, noted["id"]):
                self.folder.finish()
            return Prepared(self.folder.npy or self.folder.out, before.as_json(), {}, already_done=True)
        if before is not None and not append:
            raise SettingsError(
                f"{self.folder.npy or self.folder.out} holds a dataset from other inputs or settings: "
                f"{option('append')} adds to it, or choose another folder"
            )
        if append and before is not None:
            check_same(before, tokenizer, self.settings, self.plan["end_id"], self.folder.out)
        if self.plan["cache"]:
            _native.check_dedup_cache(json.dumps(self.plan))
        self._resume_or_begin()
        self._exclude()

        saving = Thread(target=self._try_to_save, args=[tokenizer])  # while the core scans
        saving.start()
        try:
            self._find_duplicates()
        finally:
            saving.join()
        tokenizer = tokenizer or self._learn_characters()
        self._save_tokenizer(tokenizer)
        self._write(tokenizer)
        self._drop_near_duplicates(tokenizer)
        if empty := self._end_if_empty(before):
            return empty
        return self._finish(tokenizer, before, json.loads(self._assemble()))

    def _plan(
        self, inputs: Paths, tokenizer: Tokenizer | None, before: Manifest | None, task_bytes: int | None
    ) -> None:
        names = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        local = stage_in_subprocess(names, self.folder.work / "staged", reading=self.settings, progress=self.progress)
        self.excluded = exclude.find(self.settings, self.folder.work / "staged", self.progress)
        planned = make_plan(
            self.folder,
            self.settings,
            tokenizer,
            local,
            before=before,
            excluded=self.excluded,
            task_bytes=task_bytes,
        )
        self.plan, self.inputs, self.skipped = planned.plan, planned.inputs, planned.skipped
        if not self.inputs["bytes"]:
            raise SourceError("no text to prepare: every input is empty")
        need = memory_needed(self.settings, tokenizer, planned)
        self.threads = fitting_threads(
            self.budget, self.wanted_threads, need.total, "at work, with the encoder", peak=self.meter.peak
        )
        self.working = need.total(self.threads) - LEAST_CACHE

    def _resume_or_begin(self) -> None:
        noted = self.folder.plan()
        # With a character vocabulary these are known only after the scan.
        learned = {"end_id": None, "wide": False} if self.plan["characters"] else {}
        if noted is not None and {**noted, **learned} == self.plan:
            self.plan = noted
        else:
            self.folder.begin(self.plan)

    def _exclude(self) -> None:
        if self.excluded is None:
            return
        self.meter.stage("excluding")
        try:
            found = self.excluded.build(self.folder.work, self.budget.available(), self.progress)
        except (SourceError, SettingsError):
            self.folder.abandon()
            raise
        self.inputs = {**self.inputs, "exclude": found}

    def _find_duplicates(self) -> None:
        if self.plan["unit"] or self.plan["characters"] or self.excluded is not None:
            self._run_stage("scan", "scanning", self.inputs["bytes"])
        if self.plan["unit"]:
            units = sum(note["units"] for note in self.folder.notes("scan", self.plan["tasks"], units=int))
            self._run_stage("settle", "comparing", units)

    def _learn_characters(self) -> Tokenizer:
        notes = self.folder.notes("scan", self.plan["tasks"], characters=str)
        tokenizer = prepare_tokenizer.from_characters(self.settings, (note["characters"] for note in notes))
        self.plan["end_id"] = next(iter(tokenizer.special_tokens.values()), None)
        self.plan["wide"] = tokenizer.vocab_size > 1 << 16
        self.folder.save(self.plan)
        return tokenizer

    def _try_to_save(self, tokenizer: Tokenizer | None) -> None:
        with suppress(Exception):  # the second attempt, in the main thread, raises it
            self._save_tokenizer(tokenizer)

    def _save_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        path = self.folder.work / "tokenizer.json"
        if tokenizer is not None and not path.exists():
            tokenizer.save(path, format="json")

    def _write(self, tokenizer: Tokenizer) -> None:
        spare = self.budget.available() - self.working
        tokenizer.limit_cache(min(max(spare // 2, LEAST_CACHE), CACHE_BYTES))
        self._run_stage("write", "tokenizing", self.inputs["bytes"], tokenizer)

    def _drop_near_duplicates(self, tokenizer: Tokenizer) -> None:
        if self.settings.near is not None:
            self._run_stage("pair", "pairing", self.plan["near"]["partitions"])
            self._run_stage("near", "comparing texts", 0, tokenizer)

    def _task_notes(self) -> list[Json]:
        """The notes of the tasks as they are in the end, without the pairs that may be shown, which are many."""
        notes = self.folder.notes("tokens" if self.settings.near is None else "near", self.plan["tasks"])
        return [{key: value for key, value in note.items() if key != "near"} for note in notes]

    def _run_stage(self, stage: str, name: str, total: int, tokenizer: Tokenizer | None = None) -> None:
        self.meter.stage(name)
        # The word cache fills during the stage, so it is not resident yet.
        native = stage == "write" and tokenizer is not None and isinstance(tokenizer.engine, NativeEngine)
        cache = CACHE_BYTES + self.threads * ENCODER_BYTES if native else 0
        free = self.budget.available()
        run_stage(
            self.folder.work,
            self.folder.out,
            stage,
            tokenizer,
            memory=free - min(cache, free // 3),
            threads=self.threads,
            total=total,
            progress=self._progress_of(name),
        )

    def _assemble(self) -> str:
        self.meter.stage("sharding")
        return _native.assemble_shards(
            self.folder.work,
            self.folder.out,
            pack=self.settings.pack,
            npy=self.folder.npy,
            threads=self.threads,
            progress=self._progress_of("sharding"),
        )

    def _progress_of(self, name: str) -> Progress | None:
        """Reports under the name of the stage here, whatever the core calls it."""
        progress = self.progress
        return None if progress is None else lambda _, done, total: progress(name, done, total)

    def _end_if_empty(self, before: Manifest | None) -> Prepared | None:
        """Ends a run that kept no document: with an error, or, if it appends, with the dataset unchanged."""
        notes = self._task_notes()
        ledger = run_ledger(notes, {name: Split.of(()) for name in SPLITS}, 0, self.skipped)
        why = why_empty(ledger, self.settings)
        if self.settings.allow_empty or not why:
            return None
        statistics = self._statistics(ledger, notes)
        self.folder.abandon()
        if before is None:
            raise SourceError(
                f"{why}; nothing was written: change the settings that dropped them, "
                f"or give {option('allow_empty')} to write an empty dataset"
            )
        return Prepared(self.folder.out, before.as_json(), statistics, already_done=False, nothing_new=why)

    def _statistics(self, ledger: Ledger, notes: list[Json]) -> Json:
        compared = {} if self.settings.near is None else {"near": near.statistics(self.settings.near)}
        return {
            "ramlet": __version__,
            "settings": _as_json(self.settings),
            "threads": self.threads,
            "ledger": ledger,
            **compared,
            "skipped": skipped_records(notes),
            **({"exclude": self.inputs["exclude"]} if self.excluded is not None else {}),
            "memory": self.meter.summary(),
        }

    def _finish(self, tokenizer: Tokenizer, before: Manifest | None, assembled: Json) -> Prepared:
        settings, plan, result = self.settings, self.plan, self.folder.npy or self.folder.out
        notes = self._task_notes()
        number, name = len(before.runs) if before else 0, self.folder.tokenizer_file
        run = manifest_of_run(settings, plan, tokenizer, assembled, notes, self.skipped, number, name)
        manifest = add_run(run, before, notes, plan["id"], _as_json(settings), self.inputs)
        self.meter.stage("finishing")
        statistics = self._statistics(run.ledger, notes)
        if before is None:
            with (
                open(self.folder.work / "tokenizer.json", "rb") as saved,
                replacing(self.folder.out / manifest.tokenizer.file, binary=True) as file,
            ):
                shutil.copyfileobj(saved, file)
        if plan["cache"] and plan["unit"]:
            _native.commit_dedup_cache(self.folder.work, self.folder.out)
        if settings.near is not None:
            self._finish_near(tokenizer, append=before is not None)
        if self.folder.npy is None:
            write_json(result / "stats.json", statistics)
            if self.excluded is not None:
                earlier = [each["id"] for each in before.runs] if before else []
                exclude.write_examples(result, self.folder.work, plan["id"], earlier)
        manifest.write(result)
        self.folder.finish()
        return Prepared(result, manifest.as_json(), statistics, already_done=False)

    def _finish_near(self, tokenizer: Tokenizer, *, append: bool) -> None:
        """Some of the pairs for the user, and what was kept for later runs with the same cache."""
        found = self.folder.work / NEAR_DUPLICATES
        encoder, decode = decoder_of(tokenizer)
        _native.finish_near(self.folder.work, self.folder.out, found, encoder=encoder, decode=decode)
        near.write_examples(found, self.folder.out / NEAR_DUPLICATES, append=append)


def _has_run(manifest: Manifest, identity: str) -> bool:
    return any(run["id"] == identity for run in manifest.runs)


def _as_json(settings: PrepareSettings) -> Json:
    """The settings as they are read back from a file: with lists for tuples."""
    found: Json = json.loads(json.dumps(asdict(settings)))
    return found
