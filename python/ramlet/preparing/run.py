"""The spine of `prepare`: inputs -> clean, without duplicates, tokenized, in shards.

    result = prepare(["corpus/"], "data/", tokenizer="gpt2", memory="2GB")

    plan      the inputs as a list of tasks, fixed by the inputs and the settings alone
    scan      each task: read, clean, hash                          with dedup, or for a vocabulary of characters
    settle    each partition of the hashes: what came before        with dedup
    write     each task: read, clean, leave out, tokenize
    assemble  the tokens of all tasks, in order, as shards
    finish    tokenizer.json, stats.json and, last, the manifest

The native core runs the tasks; every one commits its own result, so that the same command goes on where it was
killed, and `run_part` can run any of them anywhere. The budget changes how long it takes, never a byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any, TypedDict

from ramlet import __version__, _native
from ramlet.dataset.ledger import Ledger
from ramlet.dataset.manifest import SPLITS, TOKENIZER, Manifest, Packing, Shard, Split, TokenizerNote, beside
from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs.paths import check_path
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.preparing import tokenizer as prepare_tokenizer
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.manifest import add_run, check_same, run_ledger, skipped_records, why_empty
from ramlet.preparing.plan import make_plan
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.atomic_files import replacing, write_json
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import NATIVE_CODE, THREAD_BYTES, fitting_threads
from ramlet.settings.declared import declared
from ramlet.settings.names import check_names
from ramlet.tokenizer.encode import TOKEN_BYTES
from ramlet.tokenizer.engines import Engine, NativeEngine
from ramlet.tokenizer.model import CHARACTER_BYTES, UNICODE
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["Prepared", "prepare", "prepare_to", "run_part"]

LEAST_CACHE = 1 << 20
CACHE_BYTES = 24 << 20
"""The word cache; with GPT-2's vocabulary two threads then take some 90 MB in all."""
HF_CHARACTER_BYTES = 200
"""What HF's library takes for a character of the document that it encodes."""
FRONT_BYTES = 1 << 20
"""What each thread's encoder has to itself."""

Inputs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Progress = Callable[[str, int, int], None]
Json = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """What became of `prepare`.

    prepared: ramlet.Prepared = ramlet.prepare("corpus/", "my-dataset", tokenizer="gpt2")
    prepared.path, prepared.manifest["splits"]["train"]["tokens"], prepared.already_done
    """

    path: Path
    """The dataset's folder, or the `.npy` file."""

    manifest: Json = field(repr=False)
    statistics: Json = field(repr=False)
    already_done: bool
    """Nothing was read: it held this very result."""
    nothing_new: str = field(default="", repr=False)
    """Why an append added nothing and left the dataset as it was; empty where it added something."""


def prepare(
    inputs: Inputs,
    out: str | os.PathLike[str],
    *,
    memory: Budget | str | int | None = "auto",
    threads: int | None = None,
    append: bool = False,
    progress: Progress | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | Any | None = None,
    **settings: Any,
) -> Prepared:
    """Prepares a dataset from files, folders, globs, hub names or URLs, never holding more than `memory`.

        ramlet.prepare(["corpus/", "more.jsonl.zst"], "my-dataset", tokenizer="gpt2", memory="2GB", dedup="line")

    `tokenizer` is a Tokenizer, or what `ramlet.Tokenizer.load` takes. The settings are the options of
    `ramlet prepare`, with underscores. With `append` the documents are added to the dataset at `out`, with its own
    tokenizer.
    """
    if tokenizer is None or isinstance(tokenizer, (str, os.PathLike)):
        given, named = None, None if tokenizer is None else os.fspath(tokenizer)
    else:
        given = Tokenizer.load(tokenizer)  # with a cache of its own, which is this call's to limit
        named = given.kind
    check_names(settings, [*declared(PrepareSettings), *(prepare.__kwdefaults__ or ())])
    chosen = PrepareSettings(tokenizer=named or "gpt2", **settings)
    with Meter(Budget.parse(memory)) as meter:
        return prepare_to(
            inputs,
            Path(out),
            chosen,
            meter=meter,
            threads=threads,
            append=append,
            own_tokenizer=append and named is None,
            tokenizer=given,
            progress=progress,
        )


def prepare_to(
    inputs: Inputs,
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
    """The whole way, under a meter whose budget is kept.

    `own_tokenizer`: what is appended takes the dataset's. `tokenizer` is one that is loaded already, for the one that
    the settings name. `shard_bytes` is the size of a shard where it is not known
    in tokens. `task_bytes` is for tests: the size of a task.
    """
    check_path(out)
    npy = out if settings.output_format == "npy" else None
    if npy and (append or settings.pack):
        raise SettingsError(f"an npy file is one row of ids: it takes neither {option('append')} nor {option('pack')}")
    folder = OutFolder(out.parent if npy else out, npy=npy)
    with folder:
        if append and folder.manifest() is None:
            raise SettingsError(f"there is no dataset in {out} to append to: leave {option('append')} out to make one")
        run = _Run(folder, settings, meter, threads, progress, tokenizer)
        return run.whole_way(inputs, append, own_tokenizer and append, shard_bytes, task_bytes)


def run_part(
    out: str | os.PathLike[str],
    stage: str,
    index: int,
    *,
    memory: Budget | str | int | None = "auto",
    threads: int = 1,
) -> None:
    """One part of one stage of an unfinished run, here or on any machine that sees the folder and the inputs.

    A plain function of the plan in OUT/.work and an index: `scan` and `write` have as many parts as there are tasks,
    `settle` as there are partitions. A part that is done is not done again; each stage needs all of the one before.
    """
    work = Path(out) / ".work"
    budget = Budget.parse(memory)
    engine = Tokenizer.load(work / "tokenizer.json").engine if stage == "write" else None
    _native.run_prepare_stage(
        work,
        out,
        stage,
        **_encoding(engine, threads),
        memory=budget.available(),
        threads=threads,
        total=0,
        progress=None,
        part=index,
    )


class _Encoding(TypedDict):
    encoder: _native.Encoder | None
    encode: Callable[[list[str]], Any] | None


def _encoding(engine: Engine | None, threads: int) -> _Encoding:
    """What the core encodes with: its own encoder, or a call back here for the families that it does not know."""
    if engine is None or isinstance(engine, NativeEngine):
        return {"encoder": engine.encoder if engine else None, "encode": None}
    return {"encoder": None, "encode": lambda texts: engine.encode_batch(texts, [], threads, True)}


class _Run:
    def __init__(
        self,
        folder: OutFolder,
        settings: PrepareSettings,
        meter: Meter,
        threads: int | None,
        progress: Progress | None,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.folder = folder
        self.given = tokenizer
        self.settings = settings
        self.meter = meter
        self.budget = meter.budget or Budget.parse("auto")
        self.wanted_threads = threads
        self.progress = progress
        self.plan: Json = {}
        self.inputs: Json = {}
        self.passed_over: dict[str, int] = {}
        self.threads = 1
        self.working = 0
        """Bytes that the threads may take, the word cache apart."""

    def whole_way(
        self, inputs: Inputs, append: bool, own_tokenizer: bool, shard_bytes: int | None, task_bytes: int | None
    ) -> Prepared:
        before = self.folder.manifest()
        own = self.folder.out / before.tokenizer.file if before and own_tokenizer else None
        tokenizer = self.given or prepare_tokenizer.choose(self.settings, own)
        if shard_bytes is not None:
            width = 4 if tokenizer is not None and tokenizer.vocab_size > 1 << 16 else 2
            self.settings = replace(self.settings, tokens_per_shard=max(1, shard_bytes // width))
        self.meter.stage("planning")
        self._plan(inputs, tokenizer, before if append else None, task_bytes)
        if before is not None and _has_run(before, self.plan["id"]):
            self.folder.check_whole(before)
            noted = self.folder.plan()
            # An append that was interrupted goes on when it is asked for again: its work is not ours to remove.
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
        self._resume_or_begin()

        saving = Thread(target=self._try_to_save, args=[tokenizer])  # while the core reads
        saving.start()
        try:
            self._find_duplicates()
        finally:
            saving.join()
        tokenizer = tokenizer or self._learn_characters()
        self._save_tokenizer(tokenizer)
        self._write(tokenizer)
        if nothing := self._came_to_nothing(before):
            return nothing
        made = self._assemble()
        return self._finish(tokenizer, before, made)

    def _plan(
        self, inputs: Inputs, tokenizer: Tokenizer | None, before: Manifest | None, task_bytes: int | None
    ) -> None:
        settings = self.settings
        names = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        local = stage_in_subprocess(names, self.folder.work / "staged", reading=settings, progress=self.progress)
        planned = make_plan(self.folder, settings, tokenizer, local, before=before, task_bytes=task_bytes)
        self.plan, self.inputs, self.passed_over = planned.plan, planned.inputs, planned.passed_over
        if not self.inputs["bytes"]:
            raise SourceError("there is no text to prepare: every input is empty")
        longest = settings.largest_whole_file if planned.whole_files else settings.largest_document
        if not planned.decoding:
            # No document is longer than its input, but for bytes that are no UTF-8: each becomes three.
            longest = min(longest, 3 * self.inputs["bytes"])
        merges = tokenizer is not None and tokenizer.kind not in ("byte", "char")
        bounds = {"max_document_bytes": longest, "max_file_bytes": longest}
        worker, shared = _native.least_room(json.dumps({**self.plan, **bounds}), merges)
        worker += FRONT_BYTES + THREAD_BYTES + planned.decoding
        shared += NATIVE_CODE + LEAST_CACHE + TOKEN_BYTES * (tokenizer.vocab_size if tokenizer else 0)
        if tokenizer is None:
            # No text has more characters than bytes; what is packed may have any.
            shared += CHARACTER_BYTES * (UNICODE if planned.decoding else min(UNICODE, self.inputs["bytes"]))
        elif tokenizer.kind == "hf":
            shared += HF_CHARACTER_BYTES * settings.largest_document
        self.threads = fitting_threads(
            self.budget,
            self.wanted_threads,
            lambda count: count * worker + shared,
            "at work, with the encoder",
            peak=self.meter.peak,
        )
        self.working = self.threads * worker + shared - LEAST_CACHE

    def _resume_or_begin(self) -> None:
        noted = self.folder.plan()
        # Of a vocabulary that is learned on the way, these are known only then.
        learned = {"end_id": None, "wide": False} if self.plan["characters"] else {}
        if noted is not None and {**noted, **learned} == self.plan:
            self.plan = noted
        else:
            self.folder.begin(self.plan)

    # -- stages

    def _find_duplicates(self) -> None:
        if self.plan["unit"] or self.plan["characters"]:
            self._run_stage("scan", "scanning", self.inputs["bytes"])
        if self.plan["unit"]:
            units = sum(note["units"] for note in self.folder.each_note("scan", self.plan["tasks"], units=int))
            self._run_stage("settle", "comparing", units)

    def _learn_characters(self) -> Tokenizer:
        notes = self.folder.each_note("scan", self.plan["tasks"], characters=str)
        tokenizer = prepare_tokenizer.from_characters(self.settings, (note["characters"] for note in notes))
        self.plan["end_id"] = next(iter(tokenizer.special_tokens.values()), None)
        self.plan["wide"] = tokenizer.vocab_size > 1 << 16
        self.folder.save(self.plan)
        return tokenizer

    def _try_to_save(self, tokenizer: Tokenizer | None) -> None:
        with suppress(Exception):  # it fails again where it is heard
            self._save_tokenizer(tokenizer)

    def _save_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        path = self.folder.work / "tokenizer.json"
        if tokenizer is not None and not path.exists():
            tokenizer.save(path, format="json")

    def _write(self, tokenizer: Tokenizer) -> None:
        spare = self.budget.available() - self.working
        tokenizer.limit_cache(min(max(spare // 2, LEAST_CACHE), CACHE_BYTES))
        self._run_stage("write", "tokenizing", self.inputs["bytes"], tokenizer.engine)

    def _run_stage(self, stage: str, name: str, total: int, engine: Engine | None = None) -> None:
        self.meter.stage(name)
        # The word cache fills as text comes, so it is not resident yet.
        cache = CACHE_BYTES + self.threads * FRONT_BYTES if isinstance(engine, NativeEngine) else 0
        room = self.budget.available()
        _native.run_prepare_stage(
            self.folder.work,
            self.folder.out,
            stage,
            **_encoding(engine, self.threads),
            memory=room - min(cache, room // 3),
            threads=self.threads,
            total=total,
            progress=self._told(name),
        )

    def _assemble(self) -> Json:
        self.meter.stage("sharding")
        made = _native.assemble_shards(
            self.folder.work,
            self.folder.out,
            pack=self.settings.pack,
            npy=self.folder.npy,
            threads=self.threads,
            progress=self._told("sharding"),
        )
        found: Json = json.loads(made)
        return found

    def _told(self, name: str) -> Progress | None:
        progress = self.progress
        return None if progress is None else lambda _, done, total: progress(name, done, total)

    # -- finish

    def _came_to_nothing(self, before: Manifest | None) -> Prepared | None:
        """Ends a run that kept no document: with an error, or, where it appends, with the dataset as it was."""
        notes = self.folder.notes("tokens", self.plan["tasks"])
        ledger = run_ledger(notes, {name: Split.of(()) for name in SPLITS}, 0, self.passed_over)
        why = why_empty(ledger, self.settings)
        if self.settings.allow_empty or not why:
            return None
        statistics = self._statistics(ledger, notes)
        self.folder.abandon()
        if before is None:
            raise SourceError(
                f"{why}; nothing was written: change what dropped them, "
                f"or give {option('allow_empty')} to have an empty dataset"
            )
        return Prepared(self.folder.out, before.as_json(), statistics, already_done=False, nothing_new=why)

    def _statistics(self, ledger: Ledger, notes: list[Json]) -> Json:
        return {
            "ramlet": __version__,
            "settings": asdict(self.settings),
            "threads": self.threads,
            "ledger": ledger,
            "skipped": skipped_records(notes),
            "memory": self.meter.summary(),
        }

    def _finish(self, tokenizer: Tokenizer, before: Manifest | None, made: Json) -> Prepared:
        settings, plan, result = self.settings, self.plan, self.folder.npy or self.folder.out
        notes = self.folder.notes("tokens", plan["tasks"])
        run = self._manifest(tokenizer, made, notes, number=len(before.runs) if before else 0)
        manifest = add_run(run, before, notes, plan["id"], asdict(settings), self.inputs)
        self.meter.stage("finishing")
        statistics = self._statistics(run.ledger, notes)
        if before is None:
            with (
                open(self.folder.work / "tokenizer.json", "rb") as saved,
                replacing(self.folder.out / manifest.tokenizer.file, binary=True) as file,
            ):
                shutil.copyfileobj(saved, file)
        if plan["cache"]:
            _native.commit_dedup_cache(self.folder.work, self.folder.out)
        if self.folder.npy is None:
            write_json(result / "stats.json", statistics)
        manifest.write(result)
        self.folder.finish()
        return Prepared(result, manifest.as_json(), statistics, already_done=False)

    def _manifest(self, tokenizer: Tokenizer, made: Json, notes: list[Json], number: int) -> Manifest:
        """Of this run alone, which has that number in the dataset."""
        settings, plan, npy = self.settings, self.plan, self.folder.npy
        packed = None
        if npy:
            documents = sum(note["train"]["documents"] for note in notes)
            splits = {"train": Split(made["tokens"], documents, ()), "val": Split.of(())}
        else:
            shards = [Shard(**shard, run=number) for shard in made.pop("shards")]
            splits = {
                name: Split.of(tuple(one for one in shards if one.file.startswith(f"{name}/"))) for name in SPLITS
            }
            if settings.pack:
                packed = Packing(sequence_length=settings.pack, pad_id=plan["end_id"] or 0, **made)
        return Manifest(
            dtype="uint32" if plan["wide"] else "uint16",
            vocab_size=tokenizer.vocab_size,
            tokenizer=TokenizerNote(
                file=beside(npy, ".tokenizer.json").name if npy else TOKENIZER,
                fingerprint=tokenizer.fingerprint,
                kind=tokenizer.kind,
                name=settings.tokenizer,
            ),
            end_id=plan["end_id"],
            max_tokens=settings.max_tokens,
            tokens_per_shard=settings.tokens_per_shard,
            val_fraction=plan["val_fraction"],
            packed=packed,
            splits=splits,
            ledger=run_ledger(notes, splits, packed.padding if packed else 0, self.passed_over),
        )


def _has_run(manifest: Manifest, identity: str) -> bool:
    return any(run["id"] == identity for run in manifest.runs)
