"""What is in a dataset, for people: counts, what was dropped and why, and documents picked at random."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from ramlet.dataset.ledger import Ledger, dropped_by_rule
from ramlet.dataset.manifest import Manifest
from ramlet.dataset.reader import Dataset
from ramlet.errors import RamletError

DOCUMENT_BYTES, ID_BYTES = 1000, 300
"""Of a sample, and of each of its ids with its token."""


def figures(dataset: Dataset) -> dict[str, Any]:
    """The content of the manifest, for people."""
    manifest = dataset.manifest
    ledger = manifest.ledger
    return {
        "path": str(dataset.path),
        "dtype": manifest.dtype,
        "vocab_size": manifest.vocab_size,
        "tokenizer": {
            "name": manifest.tokenizer.name,
            "kind": manifest.tokenizer.kind,
            "fingerprint": manifest.tokenizer.fingerprint,
        },
        "end_id": manifest.end_id,
        "packed": manifest.as_json()["packed"],
        "tokens": sum(split.tokens for split in manifest.splits.values()),
        "documents": sum(split.documents for split in manifest.splits.values()),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "splits": {
            name: {"tokens": split.tokens, "documents": split.documents, "shards": len(split.shards)}
            for name, split in manifest.splits.items()
        },
        **_density(manifest),
        "lengths": [
            {"from": 1 << power, "to": (2 << power) - 1, "documents": count}
            for power, count in enumerate(manifest.lengths)
        ],
        "documents_read": ledger["documents"]["read"],
        "dropped": _dropped(ledger, "document"),
        "lines_dropped": _dropped(ledger, "line"),
        "examples": manifest.examples,
        "runs": len(manifest.runs),
    }


def _density(manifest: Manifest) -> dict[str, float | None]:
    """Characters and bytes per token, without end ids and padding; the text of adopted shards is unknown."""
    characters = text_bytes = tokens = 0
    for run in manifest.runs:
        account = run["ledger"]
        if account["characters"]:
            counts = account["tokens"]
            characters += account["characters"]
            text_bytes += account["bytes"]["kept"]
            tokens += counts["train"] + counts["val"] - counts["end_ids"] - counts["padding"]
    if tokens <= 0:
        return {"characters_a_token": None, "bytes_a_token": None}
    return {"characters_a_token": round(characters / tokens, 3), "bytes_a_token": round(text_bytes / tokens, 3)}


def _dropped(ledger: Ledger, unit: str) -> list[dict[str, Any]]:
    """By rule, largest first."""
    rows = sorted(dropped_by_rule(ledger, unit), key=lambda row: -row.units)
    return [{"rule": rule.name, "why": rule.meaning, "count": count, "bytes": size} for rule, count, size in rows]


def samples_bytes(dataset: Dataset, split: str, count: int, most_tokens: int) -> int:
    """Memory that these samples take: each id and token is an object, and once more in JSON."""
    documents = min(count, dataset.document_count(split))
    return documents * DOCUMENT_BYTES + min(documents * most_tokens, dataset.splits[split].tokens) * ID_BYTES


def samples(dataset: Dataset, split: str, count: int, seed: int, most_tokens: int) -> list[dict[str, Any]]:
    """Documents picked at random by the seed: number, count of ids, the first ids and their tokens."""
    total = dataset.document_count(split)
    picked = random.Random(seed).sample(range(total), min(count, total))
    vocabulary: dict[int, bytes] | None = None
    # Without a tokenizer the ids can still be shown; `verify` reports what is wrong with it.
    with suppress(RamletError, OSError):
        vocabulary = dataset.tokenizer.vocabulary
    found = []
    for number in sorted(picked):
        ids, length = dataset.beginning(split, number, most_tokens)
        shown = ids.tolist()
        tokens = None if vocabulary is None else [vocabulary.get(one, b"\xef\xbf\xbd") for one in shown]
        found.append({"split": split, "document": number, "tokens_in_all": length, "ids": shown, "tokens": tokens})
    return found
