"""Adds shards that someone moved into train/ or val/ to the dataset: the option `adopt` of `ramlet data verify`.

Any `shard_*.bin` that is not in the manifest is a candidate, with or without an `.idx` next to it; without, it is split
into documents at the end id. All are checked before anything is changed. They get the next numbers:

    1. an .idx is written for those that have none
    2. DATASET/.adopting.json records the renames
    3. the files are renamed
    4. they are added to the manifest; the record is removed

After a kill at any moment the dataset is the old one or the new one, and the same command finishes: the record keeps an
.idx with its .bin if the renaming was interrupted between the two.
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
from ramlet.dataset.shard_check import Problem, ShardCheck
from ramlet.dataset.verify import ADOPTED, Progress, is_being_appended_to, unknown_files, with_progress
from ramlet.errors import DatasetError, option
from ramlet.runtime.atomic_files import remove, replacing, sync_folder
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.folder_lock import hold
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json

RENAMES = ".adopting.json"


@dataclass(frozen=True)
class Adopted:
    """What was added."""

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
    """A .bin of a split, and its number in the dataset."""

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
    """Adds all shards that are not in the manifest; nothing is changed if one of them has a problem."""
    folder = Path(path)
    Manifest.read(folder)  # no lock file next to a folder that is not a dataset
    with hold(folder, "data verify", instead="dataset"):
        manifest = Manifest.read(folder)
        renamed = _finish_renames(folder)
        candidates = _candidates(folder, manifest)
        if not candidates:
            remove(folder / RENAMES)
            return Adopted()
        if is_being_appended_to(folder, manifest):
            # Its shards would be in the dataset twice, once it is finished.
            raise DatasetError(
                f"{folder} has an unfinished `ramlet prepare`, and shards that may be of it: run that again first"
            )
        written: list[Path] = []
        try:
            for candidate in candidates:
                written += _write_missing_index(folder, manifest, candidate)
            checks = _check(folder, manifest, candidates, progress)
            renames = _renames(folder, candidates)
        except DatasetError:
            for index in written:
                remove(index)
            raise
        if renames:
            with replacing(folder / RENAMES) as file:
                json.dump(renames, file)
            renamed += _finish_renames(folder)
        run = len(manifest.runs)
        shards = tuple(_shard(folder, candidate, check, run) for candidate, check in zip(candidates, checks))
        _with(manifest, shards, checks).write(folder)
        remove(folder / RENAMES)
    return Adopted(shards, tuple(pair for pair in renamed if pair[0].endswith(".bin")))


def moved_over(manifest: Manifest, problems: Sequence[Problem]) -> list[str]:
    """What to do about problems of shards in the manifest, which may have been replaced by other files."""
    found = {problem.file for problem in problems}
    return [
        f"if another shard was moved over {shard.file}, its old content is no longer in the dataset: put the old file "
        f"back, and move the new one to a free name, such as {Shard.names(name, len(split.shards))[0]}, before "
        f"{option('adopt')}"
        for name, split in manifest.splits.items()
        for shard in split.shards
        if shard.file in found
    ]


def _candidates(folder: Path, manifest: Manifest) -> list[_Candidate]:
    found = []
    for split in SPLITS:
        names = [name for at, name in unknown_files(folder, manifest) if at == split]
        stems = [name.removesuffix(".bin") for name in names if re.fullmatch(r"shard_.*\.bin", name)]
        first = len(manifest.splits[split].shards)
        found += [_Candidate(split, stem, number) for number, stem in enumerate(sorted(stems, key=_order), first)]
    return found


def _order(stem: str) -> tuple[int, str]:
    number = re.match(r"shard_(\d+)", stem)
    # Names without a number come last, so no numbered file can occupy their new names.
    return (int(number[1]) if number else 1 << 62, stem)


def _write_missing_index(folder: Path, manifest: Manifest, candidate: _Candidate) -> list[Path]:
    """Writes an index if there is none; returns the one that was written."""
    ids, index = (folder / name for name in candidate.names)
    size = ids.stat().st_size
    if size == 0 or size % manifest.id_bytes:
        raise DatasetError(f"{ids} cannot be adopted: its {size:,} bytes are not {manifest.dtype} ids")
    if index.exists():
        if index.stat().st_size % 8 or not index.stat().st_size:
            raise DatasetError(f"{index} cannot be adopted: its {index.stat().st_size:,} bytes are not uint64 ends")
        return []
    if manifest.packed is not None:
        raise DatasetError(f"{ids} cannot be adopted: the dataset is packed, so it needs {index.name} next to it")
    if manifest.end_id is None:
        raise DatasetError(
            f"{ids} cannot be adopted: without {index.name} it is split into documents at the end id, "
            "but this dataset has none"
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
    for candidate in with_progress(candidates, sizes, progress):
        check = ShardCheck(folder, *candidate.names, manifest, ends_needed=False).run()
        if check.problems:
            raise DatasetError(f"cannot adopt {check.problems[0]}; nothing was changed")
        checks.append(check)
    return checks


def _renames(folder: Path, candidates: list[_Candidate]) -> list[tuple[str, str]]:
    """Renames in an order in which every target is free.

    The new name of a candidate may be the old one of another, which is then renamed first. As numbers are given in
    the order of the names, such a chain goes up or down, but never in a circle.
    """
    holders = {candidate.names[0]: candidate for candidate in candidates}
    placed: set[_Candidate] = set()
    renames: list[tuple[str, str]] = []

    for candidate in candidates:
        chain = []
        at: _Candidate | None = candidate
        while at is not None and at not in placed and at not in chain:
            chain.append(at)
            at = holders.get(at.new_names[0])
        for one in reversed(chain):
            placed.add(one)
            renames += [pair for pair in zip(one.names, one.new_names) if pair[0] != pair[1]]
    old_names = {old for old, _ in renames}
    for _, new in renames:
        if (folder / new).exists() and new not in old_names:
            # An .idx that lost its .bin.
            raise DatasetError(f"{folder / new} has no .bin, but an adopted shard needs its name: remove it")
    return renames


def _is_rename(pair: Any) -> bool:
    """Two names of shard files: nothing outside of the folder is renamed."""
    names = isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
    return names and all(re.fullmatch(r"(train|val)/[^/\0]+", name) for name in pair)


def _finish_renames(folder: Path) -> list[tuple[str, str]]:
    """Does the recorded renames that are still to be done."""
    try:
        renames = read_json(folder / RENAMES, DatasetError, MANIFEST_BYTES)
    except FileNotFoundError:
        return []
    if not isinstance(renames, list) or not all(_is_rename(pair) for pair in renames):
        raise DatasetError(f"{folder / RENAMES} is damaged: remove it, and run the same again")
    done = []
    for old, new in renames:
        # If the target exists, it was renamed before the interruption; the old name may be another's by now.
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
    """The manifest with these shards added; of their input only the number of documents is known."""
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
        packed += replace(
            packed,
            sequences=sum(shard.tokens for shard in shards) // packed.sequence_length,
            padding=account["tokens"]["padding"],
            pieces=account["documents"]["kept"],
            truncated_documents=0,
        )
    return replace(
        manifest,
        splits=splits,
        packed=packed,
        ledger=ledger.add([manifest.ledger, account]),
        lengths=lengths,
        runs=[*manifest.runs, run],
    )
