"""How repetitive a dataset is: copies among its documents, and its most frequent lines and passages.

    found = measure(Dataset("my-dataset"))      reads it twice; memory does not depend on its size
    found["documents"]                          {"total", "sampled", "copies", "share"}
    found["near_duplicates"]                    {"similarity", "sampled", "share"}
    found["lines"]["most_frequent"]             [{"text": "Home | About", "count": 500}, ...]
    found["lines"]["unlisted_at_most"]          no line that is missing from the list is more frequent than this

Counts in the lists are exact. `unlisted_at_most` is at most 1/65,536 of all lines (or n-grams of 13 words), plus what a
candidate beyond the first 4,096 had; if it is below the last count of the list, these are the most frequent ones. Of
n-grams that overlap, only the most frequent is listed. The share of copies is exact up to 131,072 different documents;
beyond that it is estimated from those with the smallest hashes, each with all its copies. The share of documents that
are similar to an earlier one, copies included, is always an estimate (rust/near/left.rs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet import _native
from ramlet.dataset.manifest import Manifest
from ramlet.errors import DatasetError
from ramlet.runtime.atomic_files import write_json
from ramlet.runtime.digest import digest
from ramlet.runtime.small_files import read_json_object

if TYPE_CHECKING:
    from ramlet.dataset.reader import Dataset

FILE = "repetition.json"
NGRAM = 13
LISTED = 10
BATCH_CHARACTERS = 1 << 20
QUICK_TOKENS = 10_000_000
"""A dataset up to this size is measured in seconds."""

Json = dict[str, Any]


def measure(dataset: Dataset, progress: Callable[[int, int], None] | None = None) -> Json:
    """Reads the dataset twice; `progress` gets the tokens read so far and in total."""
    repetition = _native.Repetition(NGRAM)
    total = 2 * sum(split.tokens for split in dataset.splits.values())
    done = 0
    for reading in range(2):
        if reading:
            repetition.begin_counting()
        for texts, tokens in _batches(dataset):
            repetition.add(texts)
            done += tokens
            if progress is not None:
                progress(done, total)
    found: Json = json.loads(repetition.result(LISTED))
    return {"ngram": NGRAM, **found, "mark": _mark(dataset.manifest)}


def save(dataset: Dataset, found: Json) -> None:
    """For the report."""
    write_json(dataset.path / FILE, found)


def saved(path: Path, manifest: Manifest) -> Json | None:
    """What was measured before, if the dataset has not changed since."""
    with suppress(OSError, ValueError):
        found = read_json_object(path / FILE, DatasetError)
        if found.get("mark") == _mark(manifest):
            return found
    return None


def _mark(manifest: Manifest) -> str:
    return digest(shard.xxh64.encode() for shard in manifest.shards)


def _batches(dataset: Dataset) -> Iterator[tuple[list[str], int]]:
    from ramlet.dataset.texts import pieces

    texts: list[str] = []
    characters = tokens = 0
    text = bytearray()
    for split in dataset.splits:
        for piece, ids, ends in pieces(dataset, split):
            tokens += ids
            text += piece
            if not ends:
                continue
            texts.append(text.decode("utf-8", "replace"))
            text = bytearray()
            characters += len(texts[-1])
            if characters >= BATCH_CHARACTERS:
                yield texts, tokens
                texts, characters, tokens = [], 0, 0
    yield texts, tokens
