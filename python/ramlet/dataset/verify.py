"""Checks a dataset against its manifest: files, sizes, checksums, counts, ids, the ledger, the tokenizer.

Everything is checked, whatever was found before: the report lists all problems. Files are read twice, once for the
checksum and once for their content; the second time they come from the page cache.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from ramlet.dataset import ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Shard
from ramlet.dataset.reader import END_BYTES
from ramlet.dataset.shard_check import Problem, ShardCheck
from ramlet.errors import DatasetError, RamletError
from ramlet.runtime.atomic_files import is_temporary
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import LARGE, read_json_object

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the total."""

_SHARD = re.compile(r"shard_\d{5,}\.(bin|idx)")

ADOPTED = "adopted"
"""The run id of shards that were moved in by hand."""


@dataclass
class Report:
    """What `verify` found."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Worth knowing, but not wrong."""
    adoptable: list[str] = field(default_factory=list)
    """Shards that are not in the manifest."""
    shards: int = 0
    tokens: int = 0
    documents: int = 0
    bytes: int = 0

    @property
    def sound(self) -> bool:
        return not self.problems

    def add(self, file: str, what: str) -> None:
        self.problems.append(Problem(file, what))


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Checks a whole dataset; only an unreadable manifest raises an error."""
    folder = Path(path)
    manifest = Manifest.read(folder)
    report = Report(
        shards=len(manifest.shards),
        tokens=sum(split.tokens for split in manifest.splits.values()),
        documents=sum(split.documents for split in manifest.splits.values()),
    )
    _check_manifest(manifest, report)
    totals = _check_shards(folder, manifest, report, progress)
    if totals is not None:
        _check_totals(manifest, totals, report)
    _check_tokenizer(folder, manifest, report)
    _list_unknown(folder, manifest, report)
    return report


def shard_bytes(shard: Shard) -> int:
    """Of both files; in a packed dataset the index may be larger."""
    return shard.bytes + shard.documents * END_BYTES


def with_progress(items: Sequence[T], sizes: Sequence[int], progress: Progress | None) -> Iterator[T]:
    """The items; progress is reported by their sizes."""
    done, total = 0, sum(sizes)
    for item, size in zip(items, sizes):
        if progress is not None:
            progress(done, total)
        yield item
        done += size
    if progress is not None:
        progress(total, total)


def unknown_files(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Split and name of the files in train/ and val/ that are not in the manifest."""
    known = {name for shard in manifest.shards for name in (shard.file, shard.index)}
    for split in SPLITS:
        if (folder / split).is_dir():
            for name in sorted(os.listdir(folder / split)):
                if f"{split}/{name}" not in known:
                    yield split, name


def _check_manifest(manifest: Manifest, report: Report) -> None:
    add = partial(report.add, "manifest")
    if manifest.vocab_size > 1 << (8 * manifest.id_bytes):
        add(f"ids of {manifest.vocab_size:,} tokens do not fit {manifest.dtype}")
    for name, value in {"end_id": manifest.end_id, "pad_id": manifest.pad_id}.items():
        if value is not None and value >= manifest.vocab_size:
            add(f"{name} {value:,} is beyond the vocabulary of {manifest.vocab_size:,}")
    for name, split in manifest.splits.items():
        for key in ("tokens", "documents"):
            total, parts = getattr(split, key), sum(getattr(shard, key) for shard in split.shards)
            if total != parts:
                add(f"{name} has {total:,} {key}, but its shards have {parts:,} together")
        for number, shard in enumerate(split.shards):
            if (shard.file, shard.index) != Shard.names(name, number):
                add(f"shard {number} of {name} is named {shard.file} with {shard.index}")
            if shard.run >= len(manifest.runs):
                add(f"{shard.file} is from run {shard.run}, but there are {len(manifest.runs)} runs")
            if shard.documents > 1 and not _adopted(manifest, shard) and shard.tokens > manifest.tokens_per_shard:
                add(f"{shard.file} has more than the {manifest.tokens_per_shard:,} tokens of a shard")
    _check_ledger(manifest, report)


def _check_ledger(manifest: Manifest, report: Report) -> None:
    ledgers = {
        "ledger": manifest.ledger,
        **{f"ledger of run {at}": run["ledger"] for at, run in enumerate(manifest.runs)},
    }
    found = [(name, problem) for name, each in ledgers.items() for problem in ledger.problems(each)]
    for name, problem in found:
        report.add(name, problem)
    if found:
        return
    if ledger.add([manifest.ledger]) != ledger.add(run["ledger"] for run in manifest.runs):
        report.add("ledger", "it is not the sum of the runs")
    for name, split in manifest.splits.items():
        tokens = manifest.ledger["tokens"][name]
        if tokens != split.tokens:
            report.add("ledger", f"it has {plural(tokens, 'token')} in {name}, but the shards have {split.tokens:,}")
    kept, listed = manifest.ledger["documents"]["kept"], sum(split.documents for split in manifest.splits.values())
    # A packed document may be several pieces in the shards.
    if kept != listed and manifest.packed is None:
        kept_documents = plural(kept, "document was", "documents were")
        report.add("ledger", f"{kept_documents} kept, but the shards have {listed:,}")
    if sum(manifest.lengths) != kept:
        report.add("manifest", f"lengths has {plural(sum(manifest.lengths), 'document')}, but {kept:,} were kept")


def _adopted(manifest: Manifest, shard: Shard) -> bool:
    return shard.run < len(manifest.runs) and manifest.runs[shard.run].get("id") == ADOPTED


def _check_shards(folder: Path, manifest: Manifest, report: Report, progress: Progress | None) -> Counter[str] | None:
    """Totals over all shards; None if one has a problem."""
    totals: Counter[str] = Counter()
    before = len(report.problems)
    for shard in with_progress(manifest.shards, list(map(shard_bytes, manifest.shards)), progress):
        if _check_files(folder, manifest, shard, report):
            check = ShardCheck(folder, shard.file, shard.index, manifest, not _adopted(manifest, shard)).run()
            report.problems += check.problems
            totals.update(pieces=check.entries, end_ids=check.end_ids, padding=check.padding)
        report.bytes += shard_bytes(shard)
    return totals if len(report.problems) == before else None


def _check_files(folder: Path, manifest: Manifest, shard: Shard, report: Report) -> bool:
    """Whether both files exist with a size that allows checking their content."""
    readable = True
    for name, checksum in ((shard.file, shard.xxh64), (shard.index, shard.index_xxh64)):
        path = folder / name
        try:
            wrong = _size_problem(path.stat().st_size, shard, name, packed=manifest.packed is not None)
            if not wrong and file_checksum(path) != checksum:
                report.add(name, "its checksum differs from the manifest: it was changed or damaged")
        except FileNotFoundError:
            wrong = "missing"
        except OSError as error:
            wrong = f"cannot be read: {error.strerror}"
        if wrong:
            report.add(name, wrong)
            readable = False
    return readable


def _size_problem(size: int, shard: Shard, name: str, *, packed: bool) -> str:
    if name == shard.index and packed:
        # One entry per piece; a document has one or more.
        if size % END_BYTES == 0 and size >= shard.documents * END_BYTES:
            return ""
        return f"{plural(size, 'byte')} cannot be the ends of {plural(shard.documents, 'document')}"
    wanted = shard.bytes if name == shard.file else shard.documents * END_BYTES
    return "" if size == wanted else f"{size:,} bytes instead of {wanted:,}"


def _check_totals(manifest: Manifest, totals: Counter[str], report: Report) -> None:
    tokens = manifest.ledger["tokens"]
    packed = manifest.packed
    if packed is not None:
        ids = sum(split.tokens for split in manifest.splits.values())
        for name, found, listed in (
            ("pieces", totals["pieces"], packed.pieces),
            ("ids of padding", totals["padding"], packed.padding),
            ("sequences", ids // packed.sequence_length, packed.sequences),
        ):
            if found != listed:
                report.add("manifest", f"{listed:,} {name} are listed, but the shards have {found:,}")
        if tokens["padding"] != packed.padding:
            report.add("ledger", f"it has {tokens['padding']:,} ids of padding, but the manifest {packed.padding:,}")
    if tokens["end_ids"] != totals["end_ids"]:
        report.add("ledger", f"it has {tokens['end_ids']:,} end ids, but {totals['end_ids']:,} documents end with one")


def _check_tokenizer(folder: Path, manifest: Manifest, report: Report) -> None:
    from ramlet.tokenizer.tokenizer import Tokenizer

    listed = manifest.tokenizer
    path = folder / listed.file
    if not path.is_file():
        report.add(listed.file, "missing")
        return
    try:
        tokenizer = Tokenizer.load(path)
    except (RamletError, OSError) as error:
        report.add(listed.file, str(error))
        return
    if tokenizer.fingerprint != listed.fingerprint:
        report.add(
            listed.file,
            f"not the tokenizer that made the ids: its fingerprint is {tokenizer.fingerprint}, but the manifest has "
            f"{listed.fingerprint}",
        )
    elif tokenizer.vocab_size > manifest.vocab_size:
        report.add(
            "manifest", f"vocab_size is {manifest.vocab_size:,}, but the tokenizer has {tokenizer.vocab_size:,} tokens"
        )


def is_being_appended_to(folder: Path, manifest: Manifest) -> bool:
    """Whether an interrupted `prepare` is to go on here, and shards that the manifest does not list may be its own."""
    if not (folder / ".work/shards/layout.json").exists():
        return False
    try:
        plan = read_json_object(folder / ".work" / "plan.json", DatasetError, LARGE)
    except (OSError, DatasetError):
        return False
    return all(run["id"] != plan.get("id") for run in manifest.runs)


def _list_unknown(folder: Path, manifest: Manifest, report: Report) -> None:
    unfinished = is_being_appended_to(folder, manifest)
    for split, name in unknown_files(folder, manifest):
        if unfinished and _SHARD.fullmatch(name):
            report.notes.append(f"{split}/{name}: of the `ramlet prepare` that was interrupted")
        elif name.startswith("shard_") and name.endswith((".bin", ".idx")):
            report.add(f"{split}/{name}", "not in the manifest")
            report.adoptable.append(f"{split}/{name}")
        else:
            what = "left by a write that was killed" if is_temporary(name) else "not a file of the dataset"
            report.notes.append(f"{split}/{name}: {what}")
    if (folder / ".work").exists():
        report.notes.append(".work: a `ramlet prepare` was interrupted; run it again to resume")
