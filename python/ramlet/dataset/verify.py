"""Is a dataset what its manifest says: files, sizes, checksums, counts, ids, the ledger, the tokenizer.

Everything is checked, whatever was found before: the report lists all that is wrong. Files are read twice,
once for the checksum and once for what they hold; the second time they come from the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ramlet.dataset import ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Shard
from ramlet.dataset.reader import END_BYTES
from ramlet.dataset.shard_check import ShardCheck, ShardRules
from ramlet.errors import RamletError
from ramlet.runtime.atomic_files import is_temporary
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.plurals import plural

__all__ = ["ADOPTED", "Progress", "Report", "shard_rules", "unknown_files", "verify"]

Progress = Callable[[int, int], None]
"""Told the bytes that are done and the total."""

ADOPTED = "adopted"
"""The id of a run that stands for shards moved in by hand."""


@dataclass
class Report:
    """What `verify` found."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Worth knowing, but nothing is wrong."""
    adoptable: list[str] = field(default_factory=list)
    """Shards that the manifest does not have."""
    shards: int = 0
    tokens: int = 0
    documents: int = 0
    bytes: int = 0

    @property
    def sound(self) -> bool:
        return not self.problems


@dataclass
class _Totals:
    """Over all shards whose files could be read."""

    complete: bool = True
    entries: int = 0
    end_ids: int = 0
    padding: int = 0


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Checks all of a dataset; only a manifest that cannot be read is an error."""
    folder = Path(path)
    manifest = Manifest.read(folder)
    report = Report(
        shards=len(manifest.shards),
        tokens=sum(split.tokens for split in manifest.splits.values()),
        documents=sum(split.documents for split in manifest.splits.values()),
    )
    _check_manifest(manifest, report)
    totals = _check_shards(folder, manifest, report, progress)
    _check_totals(manifest, totals, report)
    _check_tokenizer(folder, manifest, report)
    _tell_unknown(folder, manifest, report)
    return report


def shard_rules(manifest: Manifest) -> ShardRules:
    packed = manifest.packed
    return ShardRules(
        dtype=np.dtype(f"<u{manifest.id_bytes}"),
        vocab_size=manifest.vocab_size,
        end_id=manifest.end_id,
        sequence_length=packed.sequence_length if packed else None,
        pad_id=packed.pad_id if packed else None,
    )


def unknown_files(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Split and name of the files in train/ and val/ that the manifest does not have."""
    known = {name for shard in manifest.shards for name in (shard.file, shard.index)}
    for split in SPLITS:
        if (folder / split).is_dir():
            for name in sorted(os.listdir(folder / split)):
                if f"{split}/{name}" not in known:
                    yield split, name


def _check_manifest(manifest: Manifest, report: Report) -> None:
    tell = report.problems.append
    if manifest.vocab_size > 1 << (8 * manifest.id_bytes):
        tell(f"manifest: ids of {manifest.vocab_size:,} tokens do not fit {manifest.dtype}")
    special = {"end_id": manifest.end_id, "pad_id": manifest.packed.pad_id if manifest.packed else None}
    for name, value in special.items():
        if value is not None and value >= manifest.vocab_size:
            tell(f"manifest: {name} {value:,} is beyond the vocabulary of {manifest.vocab_size:,}")
    for name, split in manifest.splits.items():
        for key in ("tokens", "documents"):
            total, parts = getattr(split, key), sum(getattr(shard, key) for shard in split.shards)
            if total != parts:
                tell(f"manifest: {name} has {total:,} {key}, but its shards have {parts:,} together")
        for number, shard in enumerate(split.shards):
            if (shard.file, shard.index) != Shard.names(name, number):
                tell(f"manifest: shard {number} of {name} is named {shard.file} with {shard.index}")
            if shard.run >= len(manifest.runs):
                tell(f"manifest: {shard.file} is of run {shard.run}, which is not among the {len(manifest.runs)} runs")
            if shard.documents > 1 and not _adopted(manifest, shard) and shard.tokens > manifest.tokens_per_shard:
                tell(f"manifest: {shard.file} has more than the {manifest.tokens_per_shard:,} tokens of a shard")
    _check_ledger(manifest, tell)


def _check_ledger(manifest: Manifest, tell: Callable[[str], Any]) -> None:
    found = ledger.problems(manifest.ledger)
    for problem in found:
        tell(f"ledger: {problem}")
    for at, run in enumerate(manifest.runs):
        for problem in ledger.problems(run["ledger"]):
            tell(f"ledger of run {at}: {problem}")
            found.append(problem)
    if found:
        return
    if ledger.add([manifest.ledger]) != ledger.add(run["ledger"] for run in manifest.runs):
        tell("ledger: it is not the sum of the runs")
    for name, split in manifest.splits.items():
        noted = manifest.ledger["tokens"][name]
        if noted != split.tokens:
            tell(f"ledger: it has {plural(noted, 'token')} in {name}, but the shards have {split.tokens:,}")
    kept, listed = manifest.ledger["documents"]["kept"], sum(split.documents for split in manifest.splits.values())
    # A packed document may lie in the shards as several pieces.
    if kept != listed and manifest.packed is None:
        tell(f"ledger: {plural(kept, 'document was', 'documents were')} kept, but the shards have {listed:,}")
    if sum(manifest.lengths) != kept:
        tell(f"manifest: lengths has {plural(sum(manifest.lengths), 'document')}, but {kept:,} were kept")


def _adopted(manifest: Manifest, shard: Shard) -> bool:
    return shard.run < len(manifest.runs) and manifest.runs[shard.run].get("id") == ADOPTED


def _check_shards(folder: Path, manifest: Manifest, report: Report, progress: Progress | None) -> _Totals:
    totals = _Totals()
    sizes = [shard.bytes + shard.documents * END_BYTES for shard in manifest.shards]
    rules = shard_rules(manifest)
    for shard, size in zip(manifest.shards, sizes):
        if progress is not None:
            progress(report.bytes, sum(sizes))
        before = len(report.problems)
        if _check_files(folder, manifest, shard, report):
            check = ShardCheck(folder / shard.file, folder / shard.index, rules, not _adopted(manifest, shard)).run()
            report.problems += check.problems
            totals.entries += check.entries
            totals.end_ids += check.end_ids
            totals.padding += check.padding
        totals.complete = totals.complete and len(report.problems) == before
        report.bytes += size
    if progress is not None:
        progress(report.bytes, sum(sizes))
    return totals


def _check_files(folder: Path, manifest: Manifest, shard: Shard, report: Report) -> bool:
    """Whether both files are there with a size in which their content can be checked."""
    readable = True
    for name, checksum in ((shard.file, shard.xxh64), (shard.index, shard.index_xxh64)):
        path = folder / name
        try:
            size = path.stat().st_size
            wrong = _size_problem(size, shard, name, packed=manifest.packed is not None)
            if wrong:
                report.problems.append(f"{name}: {wrong}")
                readable = False
            elif file_checksum(path) != checksum:
                report.problems.append(f"{name}: its checksum is not the manifest's: it was changed or damaged")
        except FileNotFoundError:
            report.problems.append(f"{name}: missing")
            readable = False
        except OSError as error:
            report.problems.append(f"{name}: cannot be read: {error.strerror}")
            readable = False
    return readable


def _size_problem(size: int, shard: Shard, name: str, *, packed: bool) -> str:
    if name == shard.index and packed:
        # As many entries as pieces, of which a document has one or more.
        sound = size % END_BYTES == 0 and size >= shard.documents * END_BYTES
        return (
            "" if sound else f"{plural(size, 'byte is', 'bytes are')} no ends of {plural(shard.documents, 'document')}"
        )
    wanted = shard.bytes if name == shard.file else shard.documents * END_BYTES
    return "" if size == wanted else f"{size:,} bytes instead of {wanted:,}"


def _check_totals(manifest: Manifest, totals: _Totals, report: Report) -> None:
    if not totals.complete:
        return
    tell = report.problems.append
    noted = manifest.ledger["tokens"]
    packed = manifest.packed
    if packed is not None:
        ids = sum(split.tokens for split in manifest.splits.values())
        for name, found, listed in (
            ("pieces", totals.entries, packed.pieces),
            ("ids of padding", totals.padding, packed.padding),
            ("sequences", ids // packed.sequence_length, packed.sequences),
        ):
            if found != listed:
                tell(f"manifest: {listed:,} {name} are listed, but the shards have {found:,}")
        if noted["padding"] != packed.padding:
            tell(f"ledger: it has {noted['padding']:,} ids of padding, the manifest {packed.padding:,}")
    if noted["end_ids"] != totals.end_ids:
        tell(f"ledger: it has {noted['end_ids']:,} end ids, but {totals.end_ids:,} documents end with one")


def _check_tokenizer(folder: Path, manifest: Manifest, report: Report) -> None:
    from ramlet.tokenizer.tokenizer import Tokenizer

    noted = manifest.tokenizer
    path = folder / noted.file
    if not path.is_file():
        report.problems.append(f"{noted.file}: missing")
        return
    try:
        tokenizer = Tokenizer.load(path)
    except (RamletError, OSError) as error:
        report.problems.append(f"{noted.file}: {error}")
        return
    if tokenizer.fingerprint != noted.fingerprint:
        report.problems.append(
            f"{noted.file}: it is not the tokenizer that made the ids: its fingerprint is "
            f"{tokenizer.fingerprint}, the manifest has {noted.fingerprint}"
        )
    elif tokenizer.vocab_size > manifest.vocab_size:
        report.problems.append(
            f"manifest: vocab_size is {manifest.vocab_size:,}, but the tokenizer has {tokenizer.vocab_size:,}"
        )


def _tell_unknown(folder: Path, manifest: Manifest, report: Report) -> None:
    for split, name in unknown_files(folder, manifest):
        if name.startswith("shard_") and name.endswith((".bin", ".idx")):
            report.problems.append(f"{split}/{name}: the manifest does not have it")
            report.adoptable.append(f"{split}/{name}")
        else:
            left = "left by a write that was killed" if is_temporary(name) else "no file of the dataset"
            report.notes.append(f"{split}/{name}: {left}")
    if (folder / ".work").exists():
        report.notes.append(".work: a `ramlet prepare` was interrupted; run it again to go on")
