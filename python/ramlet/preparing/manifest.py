"""The notes of a run's tasks -> the ledger and the manifest of the dataset.

The ledger accounts for every document and byte: read = kept + dropped, by named reason. Where it does not
add up the run fails, for then documents were lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramlet import __version__
from ramlet.dataset import ledger as ledgers
from ramlet.dataset.manifest import FORMAT, VERSION
from ramlet.errors import RamletError, SettingsError, TokenizerError, option
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.plurals import plural
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["build_manifest", "check_same", "run_ledger", "skipped_records", "why_empty"]

EXAMPLES = 3
"""Kept of what each rule dropped."""

Json = dict[str, Any]


def run_ledger(notes: list[Json], shards: list[Json], packed: Json | None, skipped: dict[str, int]) -> Json:
    """What became of everything that a run read."""
    ledger = ledgers.add(note["ledger"] for note in notes)
    read = {key: sum(note["input"][key] for note in notes) for key in _COUNTERS}
    ledger["tokens"] = {
        **{split: sum(shard["tokens"] for shard in shards if _is_in(shard, split)) for split in ("train", "val")},
        "end_ids": ledger.pop("end_ids"),
        "padding": packed["padding"] if packed else 0,
    }
    ledger["input"] = {
        "files": read["files"],
        "bytes_on_disk": read["bytes_on_disk"],
        "broken_records": sum(read[key] for key in _BROKEN),
        "null_text": read["null_text"],
        "broken_files": read["broken_files"],
        "invalid_utf8": read["invalid_utf8"],
        "skipped_files": skipped,
    }
    _check(ledger, notes)
    return ledger


def why_empty(ledger: Json, settings: PrepareSettings) -> str:
    """What became of the documents of a run that kept none; "" where it kept some."""
    documents, lines, read = ledger["documents"], ledger["lines"], ledger["input"]
    if documents["kept"]:
        return ""
    if not documents["read"]:
        lost = [f"{read[key]:,} {words}" for key, words in _UNREADABLE.items() if read[key]]
        return "no document was read" + (f" ({', '.join(lost)})" if lost else "")
    cache = settings.cache_folder
    known = "" if cache is None else f"; {option('dedup_cache', cache)} knows those of earlier runs"
    reasons = []
    for rules, dropped, unit in (
        (ledgers.DOCUMENT_RULES, documents["dropped"], ""),
        (ledgers.LINE_RULES, lines["dropped"], "lines "),
    ):
        for rule, count in dropped.items():
            if count:
                more = known if rule in ledgers.DUPLICATES else ""
                reasons.append(f"{count:,} {unit}as {rule} ({rules[rule]}{more})")
    return f"every document was dropped: {', '.join(reasons)}"


_UNREADABLE = {
    "broken_records": "without a text",
    "null_text": "with an empty text field",
    "broken_files": "broken files",
}


def skipped_records(notes: list[Json]) -> Json:
    """Records that no text could be read from, by what was wrong, and where the first of them are."""
    places = [place for note in notes for place in note["input"]["examples"]]
    return {**{key: sum(note["input"][key] for note in notes) for key in _BROKEN}, "examples": places[:EXAMPLES]}


_BROKEN = ("broken_json", "missing_field", "not_a_string")
_COUNTERS = (
    *("files", "bytes_on_disk", *_BROKEN, "null_text", "broken_files"),
    "invalid_utf8",
)


def _is_in(shard: Json, split: str) -> bool:
    return bool(shard["file"].startswith(split + "/"))


def _check(ledger: Json, notes: list[Json]) -> None:
    wrong = ledgers.problems(ledger)
    kept = ledger["documents"]["kept"]
    written = sum(note[split]["documents"] for note in notes for split in ("train", "val"))
    if written != kept:
        wrong.append(f"{plural(kept, 'document was', 'documents were')} kept, but {written:,} written")
    if wrong:
        raise RamletError(
            f"the ledger does not add up ({'; '.join(wrong)}): this is a defect of ramlet, nothing counts"
        )


def build_manifest(
    *,
    before: Json | None,
    facts: Json,
    shards: list[Json],
    packed: Json | None,
    ledger: Json,
    notes: list[Json],
    run: Json,
) -> Json:
    """The manifest of a dataset, or of one that this run was appended to.

    `facts` are those that all runs of a dataset share: dtype, tokenizer, end id, shard size.
    """
    if before:
        facts = _shared(before, facts)
    before = before or {
        "splits": {split: {"tokens": 0, "documents": 0, "shards": []} for split in ("train", "val")},
        "ledger": {},
        "lengths": [],
        "examples": {},
        "runs": [],
        "packed": None,
    }
    number = len(before["runs"])
    splits = {}
    for split, old in before["splits"].items():
        new = [{**shard, "run": number} for shard in shards if _is_in(shard, split)]
        splits[split] = {
            "tokens": old["tokens"] + sum(shard["tokens"] for shard in new),
            "documents": old["documents"] + sum(shard["documents"] for shard in new),
            "shards": [*old["shards"], *new],
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "created_by": f"ramlet {__version__}",
        **facts,
        "packed": _packed(before["packed"], packed, facts["end_id"]),
        "splits": splits,
        "ledger": ledgers.add([before["ledger"], ledger]),
        "lengths": _added(before["lengths"], *(note["lengths"] for note in notes)),
        "examples": _examples(before["examples"], *(note["examples"] for note in notes)),
        "runs": [*before["runs"], {**run, "ledger": ledger}],
    }


def check_same(
    before: Json, tokenizer: Tokenizer | None, settings: PrepareSettings, end_id: int | None, out: Path
) -> None:
    """That what is appended fits the dataset that is there."""
    note = before["tokenizer"]
    known = note["fingerprint"]
    if tokenizer is None:
        raise TokenizerError(
            f"{out} has a tokenizer ({note['name']}, fingerprint {known[:12]}), and one learned anew would be another: "
            f"leave {option('tokenizer')} out to append with its own"
        )
    if tokenizer.fingerprint != known:
        raise TokenizerError(
            f"{out} was made with another tokenizer ({note['name']}, fingerprint {known[:12]}) than "
            f"{settings.tokenizer} ({tokenizer.fingerprint[:12]}): "
            f"leave {option('tokenizer')} out to append with its own"
        )
    if end_id != before["end_id"]:
        shown = "no end token" if before["end_id"] is None else f"the end token {before['end_id']}"
        raise SettingsError(
            f"the documents in {out} have {shown}: leave {option('end_token')} out to append with the same"
        )
    length = (before["packed"] or {}).get("sequence_length")
    if length != settings.pack:
        shown = f"packed in sequences of {length:,}" if length else "not packed"
        raise SettingsError(f"{out} is {shown}: append with the same {option('pack')}")


def _shared(before: Json, now: Json) -> Json:
    """What holds for the runs of a dataset together. The tokenizer is its own, whatever this run called it."""
    limits = [limit for limit in (before["max_tokens"], now["max_tokens"]) if limit is not None]
    return {
        **now,
        "tokenizer": before["tokenizer"],
        "val_fraction": before["val_fraction"],
        # From the strictest on a document may have been cut; no shard is larger than the loosest.
        "max_tokens": min(limits, default=None),
        "tokens_per_shard": max(before["tokens_per_shard"], now["tokens_per_shard"]),
    }


def _packed(before: Json | None, now: Json | None, end_id: int | None) -> Json | None:
    if now is None:
        return None
    counts = {key: now[key] for key in ("sequences", "padding", "truncated_documents", "pieces")}
    if before:
        counts = {key: before[key] + value for key, value in counts.items()}
    return {"sequence_length": now["sequence_length"], "pad_id": end_id or 0, **counts}


def _added(*histograms: list[int]) -> list[int]:
    total = [0] * max(map(len, histograms), default=0)
    for histogram in histograms:
        for at, count in enumerate(histogram):
            total[at] += count
    return total


def _examples(*found: dict[str, list[Json]]) -> dict[str, list[Json]]:
    """The first of each rule, in the order of the input."""
    kept: dict[str, list[Json]] = {}
    for part in found:
        for rule, examples in part.items():
            kept.setdefault(rule, []).extend(examples)
    return {rule: examples[:EXAMPLES] for rule, examples in kept.items()}
