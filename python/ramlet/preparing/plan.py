"""The plan of a run: everything that determines its result, as the native core reads it.

The inputs are listed on disk, as tasks; the rest is one JSON object. Two runs with the same plan give the same bytes:
an unfinished run with the same plan is resumed, and a finished one is not repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ramlet import _native
from ramlet.dataset.manifest import Manifest
from ramlet.errors import SettingsError, SourceError, option
from ramlet.inputs import sources
from ramlet.preparing import near
from ramlet.preparing.exclude import Excluded
from ramlet.preparing.folder import OutFolder
from ramlet.preparing.settings import PrepareSettings
from ramlet.preparing.tokenizer import end_id
from ramlet.runtime.digest import digest
from ramlet.tokenizer.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass
class Planned:
    """A plan, and what was found out about the inputs."""

    plan: Json
    inputs: Json
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of skipped files, by reason."""
    whole_files: bool = True
    """Whether all inputs are text files with one document each."""
    decoding: int = 0
    """The least memory that the decoder of an input takes; 0 if all are plain text."""
    excluded: str = ""
    """Identity of the evaluation set, if there is one."""
    excluding: int = 0
    """Memory in which the text of datasets in it is decoded."""
    samples: list[tuple[str, int]] = field(default_factory=list)
    """Path and size of some inputs, by which another machine shows that it sees them."""


def make_plan(
    folder: OutFolder,
    settings: PrepareSettings,
    tokenizer: Tokenizer | None,
    local: list[str],
    *,
    before: Manifest | None,
    excluded: Excluded | None,
    task_bytes: int | None,
) -> Planned:
    """Lists the inputs in `folder.work` and makes the plan. `before` is the dataset to append to."""
    planned = Planned({}, {})
    _refuse_not_utf8(folder, settings)
    reading = settings.reading()
    tasks, files, total, fingerprint = _native.plan_tasks(
        _listing(folder, settings, local, planned),
        folder.work / "inputs.new",
        documents=reading["documents"],
        separator=reading["separator"],
        task_bytes=task_bytes,
    )
    unit = {"doc": "document", "line": "line", "none": None}[settings.dedup]
    small = unit == "line" or settings.documents == "line"
    shards = {name: len(split.shards) for name, split in before.splits.items()} if before else {}
    known = [
        b"ramlet plan 1",
        settings.parts(),
        fingerprint.encode(),
        (tokenizer.fingerprint if tokenizer else "char").encode(),
        # A cache records which run added a hash: the same inputs for another folder are another run.
        os.fsencode(folder.work.resolve()) if settings.cache_folder else b"",
        str(task_bytes).encode(),
    ]
    if excluded is not None:
        known.append(excluded.identity.encode())
    identity = digest(known)
    planned.plan = {
        "id": identity,
        "tasks": tasks,
        "partitions": _native.dedup_partitions(total, "line" if small else "document") if unit else 0,
        **reading,
        "max_document_bytes": settings.largest_document,
        "max_file_bytes": settings.largest_whole_file,
        "clean": settings.cleaning(),
        "unit": unit,
        # Only if it is on: an unfinished run of an older version is resumed.
        **({} if settings.near is None else {"near": near.for_plan(settings.near, total)}),
        "cache": settings.cache_folder and os.path.abspath(settings.cache_folder),
        # The content of the cache matters too, except what this run added to it.
        "cache_listing": {name: size for name, size in _cached(settings.cache_folder) if not name.startswith(identity)},
        "cache_fingerprint": digest([settings.cleaning_parts(), *_token_limits(settings, tokenizer)]),
        "characters": tokenizer is None,
        "val_fraction": 0.0 if folder.npy else settings.val_fraction,
        "min_tokens": settings.min_tokens,
        "max_tokens": settings.max_tokens or 0,
        "split_long": settings.long_documents == "split",
        "end_id": None if tokenizer is None else end_id(settings, tokenizer, before),
        "wide": tokenizer is not None and tokenizer.vocab_size > 1 << 16,
        "tokens_per_shard": settings.tokens_per_shard,
        "first_train_shard": shards.get("train", 0),
        "first_val_shard": shards.get("val", 0),
        "appends": before is not None,
    }
    # Like `near`, only if they are given.
    if settings.pack is not None:
        planned.plan["pack"] = settings.pack
    if folder.npy is not None:
        planned.plan["npy"] = folder.npy.name
    if excluded is not None:
        planned.plan["exclude_ngram"] = settings.exclude_ngram
        planned.excluded = excluded.identity
        planned.decoding = max(planned.decoding, excluded.decoding)
        planned.excluding = excluded.datasets
    planned.inputs = {"fingerprint": fingerprint, "files": files, "bytes": total}
    return planned


def _token_limits(settings: PrepareSettings, tokenizer: Tokenizer | None) -> Iterator[bytes]:
    """What drops documents whose hashes a cache has: with other limits they would be duplicates of nothing."""
    most = settings.max_tokens if settings.long_documents == "drop" else None
    if settings.min_tokens > 1 or most is not None:  # the caches of earlier versions have no limits
        yield json.dumps([settings.min_tokens, most, tokenizer.fingerprint if tokenizer else "char"]).encode()


def _refuse_not_utf8(folder: OutFolder, settings: PrepareSettings) -> None:
    """The plan is JSON, which the native core reads; inputs are not in it, and may have any name."""
    given = {
        "out": folder.npy and folder.npy.name,
        "dedup_cache": settings.cache_folder and os.path.abspath(settings.cache_folder),
        "text_field": settings.text_field,
        "doc_separator": settings.doc_separator,
    }
    for name, value in given.items():
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{option(name)} is {value!r}, which is not UTF-8: choose another name") from None


def _listing(
    folder: OutFolder, settings: PrepareSettings, local: list[str], planned: Planned
) -> Iterator[tuple[str, str, str, int, int]]:
    folders: set[str] = set()
    for source in sources.expand(local, format=settings.format, skipped=planned.skipped, without=folder.results()):
        planned.decoding = max(planned.decoding, source.decoding(settings.text_field))
        planned.whole_files &= source.format == "text" and settings.reading()["documents"] == "file"
        if source.size is None:
            raise SourceError(f"{source.path} can be read only once, but is read twice: pipe it in, and give - instead")
        if len(planned.samples) < sources.SAMPLES and os.path.dirname(source.path) not in folders:
            folders.add(os.path.dirname(source.path))
            planned.samples.append((os.path.abspath(source.path), source.size))
        yield source.spec()


def _cached(cache: str | None) -> list[tuple[str, int]]:
    if cache is None or not os.path.lexists(cache):
        return []
    if not os.path.isdir(cache):
        raise SettingsError(f"{cache} is not a folder: give {option('dedup_cache')} a folder for the hashes")
    found = [
        (entry.name, entry.stat().st_size) for entry in os.scandir(cache) if entry.name.endswith((".hashes", ".near"))
    ]
    return sorted(found)
