"""The notes of a run's tasks -> the ledger and the manifest of the dataset.

The ledger accounts for every document and byte: read = kept + dropped, by named rule. If it does not add up, documents
were lost, and the run fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramlet.dataset import ledger as ledgers
from ramlet.dataset.ledger import Ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Packing, Shard, Split, TokenizerNote, add_lengths, first_examples
from ramlet.errors import DatasetError, RamletError, SettingsError, TokenizerError, option
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime.plurals import plural
from ramlet.tokenizer.tokenizer import Tokenizer

EXAMPLES = 3
"""Kept of the documents that each rule dropped."""

Json = dict[str, Any]


def run_ledger(notes: Iterable[Json], splits: dict[str, Split], padding: int, skipped: dict[str, int]) -> Ledger:
    """The ledger of everything that a run read."""
    ledger = ledgers.add(note["ledger"] for note in notes)
    counters = ("files", "bytes_on_disk", *_BROKEN, "null_text", "broken_files", "invalid_utf8")
    read = _sums(notes, counters)
    ledger["tokens"] = {
        **{name: split.tokens for name, split in splits.items()},
        "end_ids": ledger.pop("end_ids"),
        "padding": padding,
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


def why_empty(ledger: Ledger, settings: PrepareSettings) -> str:
    """Why a run kept no document; "" if it kept some."""
    documents, read = ledger["documents"], ledger["input"]
    if documents["kept"]:
        return ""
    if not documents["read"]:
        lost = [f"{read[key]:,} {words}" for key, words in _UNREADABLE.items() if read[key]]
        return "no document was read" + (f" ({', '.join(lost)})" if lost else "")
    cache = settings.cache_folder
    known = "" if cache is None else f"; the dedup cache {cache} has those of earlier runs"
    reasons = [
        f"{count:,} {words}as {rule.name} ({rule.meaning}{known if rule.setting in ('dedup', 'near') else ''})"
        for unit, words in (("document", ""), ("line", "lines "))
        for rule, count, _ in ledgers.dropped_by_rule(ledger, unit)
    ]
    return f"every document was dropped: {', '.join(reasons)}"


_UNREADABLE = {
    "broken_records": "without text",
    "null_text": "with an empty text field",
    "broken_files": "broken files",
}


def skipped_records(notes: Iterable[Json]) -> Json:
    """Records without readable text, by what was wrong, and where the first of them are."""
    places = [place for note in notes for place in note["input"]["examples"]]
    return {**_sums(notes, _BROKEN), "examples": places[:EXAMPLES]}


def _sums(notes: Iterable[Json], counters: tuple[str, ...]) -> dict[str, int]:
    """What was counted of the inputs of all tasks."""
    sums = dict.fromkeys(counters, 0)
    for note in notes:
        for key in counters:
            sums[key] += note["input"][key]
    return sums


_BROKEN = ("broken_json", "missing_field", "not_a_string")


def _check(ledger: Ledger, notes: Iterable[Json]) -> None:
    wrong = ledgers.problems(ledger)
    kept = ledger["documents"]["kept"]
    written = sum(note[split]["documents"] for note in notes for split in SPLITS)
    if written != kept:
        wrong.append(f"{plural(kept, 'document was', 'documents were')} kept, but {written:,} written")
    if wrong:
        raise RamletError(
            f"the ledger does not add up ({'; '.join(wrong)}): this is a bug in ramlet, do not use the result"
        )


def manifest_of_run(
    settings: PrepareSettings,
    plan: Json,
    tokenizer: Tokenizer,
    assembled: Json,
    notes: Iterable[Json],
    skipped: dict[str, int],
    number: int,
    tokenizer_file: str,
) -> Manifest:
    """The manifest of one run by itself; `assembled` comes from the core, `number` counts the runs before it."""
    packed = None
    if "shards" not in assembled:  # one npy file
        documents = sum(note["train"]["documents"] for note in notes)
        splits = {"train": Split(assembled["tokens"], documents, ()), "val": Split.of(())}
    else:
        shards = [Shard(**shard, run=number) for shard in assembled.pop("shards")]
        splits = {name: Split.of(tuple(one for one in shards if one.file.startswith(f"{name}/"))) for name in SPLITS}
        if settings.pack:
            packed = Packing(sequence_length=settings.pack, pad_id=plan["end_id"] or 0, **assembled)
    return Manifest(
        dtype="uint32" if plan["wide"] else "uint16",
        vocab_size=tokenizer.vocab_size,
        tokenizer=TokenizerNote(
            file=tokenizer_file,
            fingerprint=tokenizer.fingerprint,
            kind=tokenizer.kind,
            name=settings.tokenizer.encode("utf-8", "replace").decode("utf-8"),
        ),
        end_id=plan["end_id"],
        max_tokens=settings.max_tokens,
        tokens_per_shard=settings.tokens_per_shard,
        val_fraction=plan["val_fraction"],
        packed=packed,
        splits=splits,
        ledger=run_ledger(notes, splits, packed.padding if packed else 0, skipped),
    )


def add_run(run: Manifest, before: Manifest | None, notes: Iterable[Json], noted: Json) -> Manifest:
    """The manifest of the dataset with this run, alone or added to those `before`.

    `run` has the run's own tokens and ledger, and what all runs of a dataset share; `noted` says where it came from.
    """
    if before is not None and any(each["id"] == noted["id"] for each in before.runs):
        # Its shards would be listed twice, and nothing could read the dataset any more.
        raise DatasetError(
            f"the manifest has run {noted['id']} already: {option('stage', 'plan')} removes what is left of its work"
        )
    return replace(
        run if before is None else _joined(before, run),
        ledger=ledgers.add([before.ledger if before else {}, run.ledger]),
        lengths=add_lengths([before.lengths if before else [], *(note["lengths"] for note in notes)]),
        examples=first_examples([before.examples if before else {}, *(note["examples"] for note in notes)], EXAMPLES),
        runs=[
            *(before.runs if before else []),
            {**noted, "ledger": run.ledger},
        ],
    )


def _joined(before: Manifest, run: Manifest) -> Manifest:
    limits = [limit for limit in (before.max_tokens, run.max_tokens) if limit is not None]
    return replace(
        run,
        tokenizer=before.tokenizer,  # the dataset's, whatever this run called it
        val_fraction=before.val_fraction,
        # Documents over the smallest limit may have been cut; no shard is over the largest.
        max_tokens=min(limits, default=None),
        tokens_per_shard=max(before.tokens_per_shard, run.tokens_per_shard),
        packed=before.packed + run.packed if before.packed and run.packed else run.packed,
        splits={name: before.splits[name] + run.splits[name] for name in SPLITS},
    )


def check_same(
    before: Manifest, tokenizer: Tokenizer | None, settings: PrepareSettings, end_id: int | None, out: Path
) -> None:
    """Refuses to append with another tokenizer, end token or packing than the dataset has."""
    name, known = before.tokenizer.name, before.tokenizer.fingerprint
    if tokenizer is None or tokenizer.fingerprint != known:
        own = "one learned again" if tokenizer is None else f"{settings.tokenizer} ({tokenizer.fingerprint[:12]})"
        raise TokenizerError(
            f"{out} was made with another tokenizer ({name}, fingerprint {known[:12]}) than {own}: "
            f"remove {option('tokenizer')} to append with the dataset's own"
        )
    if end_id != before.end_id:
        shown = "no end token" if before.end_id is None else f"the end token {before.end_id}"
        raise SettingsError(
            f"the documents in {out} have {shown}: remove {option('end_token')} to append with the same"
        )
    length = before.packed.sequence_length if before.packed else None
    if length != settings.pack:
        shown = f"packed in sequences of {length:,}" if length else "not packed"
        raise SettingsError(f"{out} is {shown}: append with the same {option('pack')}")
