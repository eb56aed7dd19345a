"""Takes in shards that someone moved into train/ or val/: `ramlet data verify --adopt`.

Any `shard_*.bin` that the manifest does not have is a candidate, with the `.idx` beside it or without: then
its documents are cut at the end id. All are checked before anything is changed. They get the next numbers:

    1. an .idx is written for those that have none
    2. DATASET/.adopting.json notes who moves where
    3. the files are renamed
    4. the manifest takes them in; the note is removed

Killed at any moment, the dataset is the old one or the new one, and the same command finishes: the note is
what keeps an .idx with its .bin if the renaming was interrupted between the two.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramlet.dataset import ledger
from ramlet.dataset.manifest import SPLITS, Manifest, Shard, Split, add_lengths
from ramlet.dataset.reader import BLOCK_IDS, read_at
from ramlet.dataset.shard_check import ShardCheck
from ramlet.dataset.verify import ADOPTED, Progress, shard_rules, unknown_files
from ramlet.errors import DatasetError, option
from ramlet.runtime.atomic_files import remove, replacing, sync_folder
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json

__all__ = ["Adopted", "adopt", "moved_over"]

NOTE = ".adopting.json"


@dataclass(frozen=True)
class Adopted:
    """What was taken in."""

    shards: tuple[Shard, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)


@dataclass(frozen=True)
class _Candidate:
    """A .bin of a split, and the number that it will have."""

    split: str
    stem: str
    number: int

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.split}/{self.stem}.bin", f"{self.split}/{self.stem}.idx"

    @property
    def new_names(self) -> tuple[str, str]:
        return Shard.names(self.split, self.number)


def adopt(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Adopted:
    """Takes in all shards that the manifest does not have; nothing is changed if one of them is wrong."""
    folder = Path(path)
    Manifest.read(folder)  # nothing is made beside what is no dataset
    with hold(folder, "data verify --adopt", instead="dataset"):
        return _adopt(folder, progress)


def _adopt(folder: Path, progress: Progress | None) -> Adopted:
    manifest = Manifest.read(folder)
    renamed = _finish_moves(folder)
    candidates = _candidates(folder, manifest)
    if not candidates:
        remove(folder / NOTE)
        return Adopted()
    written: list[Path] = []
    try:
        for candidate in candidates:
            written += _write_missing_index(folder, manifest, candidate)
        checks = _check(folder, manifest, candidates, progress)
        moves = _moves(folder, candidates)
    except DatasetError:
        for index in written:
            remove(index)
        raise
    if moves:
        with replacing(folder / NOTE) as file:
            json.dump(moves, file)
        renamed += _finish_moves(folder)
    shards = tuple(_shard(folder, candidate, check, len(manifest.runs)) for candidate, check in zip(candidates, checks))
    _with(manifest, shards, checks).write(folder)
    remove(folder / NOTE)
    return Adopted(shards, tuple(pair for pair in renamed if pair[0].endswith(".bin")))


def moved_over(manifest: Manifest, problems: Sequence[str]) -> list[str]:
    """What to do about shards that the manifest has and that are other files now; of what `verify` found wrong."""
    notes = []
    for split, of in manifest.splits.items():
        listed = {shard.file for shard in of.shards}
        changed = [name for name in dict.fromkeys(each.split(":")[0] for each in problems) if name in listed]
        free = Shard.names(split, len(of.shards))[0]
        notes += [
            f"if another shard was moved over {name}, what it held before is not in the dataset any more: put the old "
            f"file back, and move the new one to a name that is free, {free} for example, before {option('adopt')}"
            for name in changed
        ]
    return notes


def _candidates(folder: Path, manifest: Manifest) -> list[_Candidate]:
    found = []
    for split in SPLITS:
        stems = [
            name[: -len(".bin")]
            for at, name in unknown_files(folder, manifest)
            if at == split and re.fullmatch(r"shard_.*\.bin", name)
        ]
        first = len(manifest.splits[split].shards)
        stems.sort(key=_order)
        found += [_Candidate(split, stem, first + at) for at, stem in enumerate(stems)]
    return found


def _order(stem: str) -> tuple[int, str]:
    number = re.match(r"shard_(\d+)", stem)
    # Names without a number come last: nothing that has one can then stand in their way.
    return (int(number[1]) if number else 1 << 62, stem)


def _write_missing_index(folder: Path, manifest: Manifest, candidate: _Candidate) -> list[Path]:
    """The index that was written, if there was none."""
    ids, index = (folder / name for name in candidate.names)
    size = ids.stat().st_size
    if size == 0 or size % manifest.id_bytes:
        raise DatasetError(f"{ids} cannot be adopted: its {size:,} bytes are no {manifest.dtype} ids")
    if index.exists():
        if index.stat().st_size % 8 or not index.stat().st_size:
            raise DatasetError(f"{index} cannot be adopted: its {index.stat().st_size:,} bytes are no uint64 ends")
        return []
    if manifest.packed is not None:
        raise DatasetError(f"{ids} cannot be adopted: the dataset is packed, so it needs its {index.name} beside it")
    if manifest.end_id is None:
        raise DatasetError(
            f"{ids} cannot be adopted: without {index.name} its documents are cut at the end id, "
            "and this dataset has none"
        )
    count = size // manifest.id_bytes
    dtype = np.dtype(f"<u{manifest.id_bytes}")
    with replacing(index, binary=True) as file:
        last = 0
        for start in range(0, count, BLOCK_IDS):
            block = read_at(ids, dtype, start, min(start + BLOCK_IDS, count))
            ends = np.flatnonzero(block == manifest.end_id) + (start + 1)
            file.write(ends.astype("<u8").tobytes())
            last = int(ends[-1]) if len(ends) else last
        if last < count:
            file.write(np.asarray([count], "<u8").tobytes())
    return [index]


def _check(
    folder: Path, manifest: Manifest, candidates: list[_Candidate], progress: Progress | None
) -> list[ShardCheck]:
    sizes = [(folder / candidate.names[0]).stat().st_size for candidate in candidates]
    checks = []
    for at, candidate in enumerate(candidates):
        if progress is not None:
            progress(sum(sizes[:at]), sum(sizes))
        ids, index = (folder / name for name in candidate.names)
        check = ShardCheck(ids, index, shard_rules(manifest), ends_needed=False).run()
        if check.problems:
            raise DatasetError(f"cannot adopt {check.problems[0]}; nothing was changed")
        checks.append(check)
    if progress is not None:
        progress(sum(sizes), sum(sizes))
    return checks


def _moves(folder: Path, candidates: list[_Candidate]) -> list[tuple[str, str]]:
    """Renames in an order in which every target is free.

    A name that is wanted may be held by another candidate, which then moves first. As numbers are given in the
    order of the names, such a chain goes up or goes down, and never round.
    """
    holders = {candidate.names[0]: candidate for candidate in candidates}
    placed: set[_Candidate] = set()
    moves: list[tuple[str, str]] = []

    for candidate in candidates:
        chain = []
        at: _Candidate | None = candidate
        while at is not None and at not in placed and at not in chain:
            chain.append(at)
            at = holders.get(at.new_names[0])
        for one in reversed(chain):
            placed.add(one)
            moves += [pair for pair in zip(one.names, one.new_names) if pair[0] != pair[1]]
    taken = {old for old, _ in moves}
    for _, new in moves:
        if (folder / new).exists() and new not in taken:
            # An .idx that lost its .bin.
            raise DatasetError(f"{folder / new} is in the way of an adopted shard: it has no .bin; remove it")
    return moves


def _is_move(move: Any) -> bool:
    """Two names of files of ours: nothing outside of the folder is renamed."""
    named = isinstance(move, list) and len(move) == 2 and all(isinstance(name, str) for name in move)
    return named and all(re.fullmatch(r"(train|val)/[^/\0]+", name) for name in move)


def _finish_moves(folder: Path) -> list[tuple[str, str]]:
    """Makes the renames that the note has and that were not yet made."""
    try:
        moves = read_json(folder / NOTE, DatasetError, MANIFEST_BYTES)
    except FileNotFoundError:
        return []
    if not isinstance(moves, list) or not all(_is_move(move) for move in moves):
        raise DatasetError(f"{folder / NOTE} is damaged: remove it, and run the same again")
    done = []
    for old, new in moves:
        # A target that is there was reached before the interruption; the old name may be another's by now.
        if not (folder / new).exists() and (folder / old).exists():
            (folder / old).rename(folder / new)
        done.append((old, new))
    for split in SPLITS:
        if (folder / split).is_dir():
            sync_folder(folder / split)
    return done


def _shard(folder: Path, candidate: _Candidate, check: ShardCheck, run: int) -> Shard:
    file, index = candidate.new_names
    return Shard(
        file=file,
        index=index,
        tokens=check.tokens,
        documents=check.entries,
        bytes=(folder / file).stat().st_size,
        xxh64=file_checksum(folder / file),
        index_xxh64=file_checksum(folder / index),
        run=run,
    )


def _with(manifest: Manifest, shards: tuple[Shard, ...], checks: list[ShardCheck]) -> Manifest:
    """The manifest with these shards taken in: no more is known of their input than the documents."""
    account = ledger.empty()
    account["documents"]["read"] = account["documents"]["kept"] = sum(check.entries for check in checks)
    account["tokens"]["end_ids"] = sum(check.end_ids for check in checks)
    account["tokens"]["padding"] = sum(check.padding for check in checks)
    splits = {}
    for name, split in manifest.splits.items():
        more = tuple(shard for shard in shards if shard.file.startswith(f"{name}/"))
        account["tokens"][name] = sum(shard.tokens for shard in more)
        splits[name] = Split.of(split.shards + more)
    run = {
        "id": ADOPTED,
        "settings": {},
        "inputs": {"fingerprint": "", "files": len(shards), "bytes": sum(shard.bytes for shard in shards)},
        "ledger": account,
    }
    lengths = add_lengths([manifest.lengths, *(check.lengths for check in checks)])
    while lengths and not lengths[-1]:
        lengths.pop()
    packed = manifest.packed
    if packed is not None:
        tokens = sum(shard.tokens for shard in shards)
        packed = replace(
            packed,
            sequences=packed.sequences + tokens // packed.sequence_length,
            padding=packed.padding + account["tokens"]["padding"],
            pieces=packed.pieces + sum(check.entries for check in checks),
        )
    return replace(
        manifest,
        splits=splits,
        packed=packed,
        ledger=ledger.add([manifest.ledger, account]),
        lengths=lengths,
        runs=[*manifest.runs, run],
    )
