"""Merges datasets: shards are copied or linked and renumbered; ledgers and runs are combined.

Datasets keep the order in which they are given. Nothing is tokenized or deduplicated again, so a document that is in
two of them is in the result twice.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

from ramlet.dataset import ledger
from ramlet.dataset.manifest import SPLITS, TOKENIZER, Manifest, Shard, Split, add_lengths, first_examples
from ramlet.dataset.new_folder import copy_file, new_folder, refuse_unless_whole
from ramlet.dataset.reader import END_BYTES
from ramlet.dataset.unchanged import refuse_changed
from ramlet.dataset.verify import Progress, shard_bytes, with_progress
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.runtime import small_files
from ramlet.runtime.atomic_files import write_json
from ramlet.runtime.checksum import file_checksum

EXAMPLES = 5
"""Kept per rule."""


@dataclass(frozen=True)
class Merged:
    """What `merge` did."""

    manifest: Manifest

    already_done: bool
    """Nothing was copied: the folder already had this result."""


def merge(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    link: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """Writes the datasets, in order, as one into the new folder `out`; does nothing if it is already there.

    With `link` the shards are hard links: they take no space, and their checksums are not compared.
    """
    began = time.monotonic()
    folders = [Path(path) for path in paths]
    if len(folders) < 2:
        raise SettingsError("give at least two datasets to merge")
    repeated = next((one for at, one in enumerate(folders) if one.resolve() in map(Path.resolve, folders[:at])), None)
    if repeated is not None:
        raise SettingsError(f"{repeated} is given twice: give each dataset once")
    manifests = [Manifest.read(folder) for folder in folders]
    for folder, manifest in zip(folders[1:], manifests[1:]):
        _refuse_different(folders[0], manifests[0], folder, manifest)
    if not any(manifest.shards for manifest in manifests):
        raise DatasetError("all of these datasets are empty: there is nothing to merge")
    splits, moves = _renumbered(manifests)
    merged = _merged(manifests, splits)
    with new_folder(out, "data merge", lambda: _holds(Path(out), merged)) as building:
        if building is None:
            return Merged(Manifest.read(out), already_done=True)
        for split in SPLITS:
            (building / split).mkdir()
        sizes = [shard_bytes(shard) for _, shard, _ in moves]
        for at, shard, new in with_progress(moves, sizes, progress):
            try:
                _copy_or_link(folders[at] / shard.file, building / new.file, shard.xxh64, shard.bytes, link)
                # A document has at least one token, also as a piece of a packed sequence.
                most = shard.tokens * END_BYTES
                _copy_or_link(folders[at] / shard.index, building / new.index, shard.index_xxh64, most, link)
            except DatasetError:
                refuse_changed(folders[at], manifests[at])
                raise
        try:
            copy_file(folders[0] / manifests[0].tokenizer.file, building / TOKENIZER, small_files.TOKENIZER)
        except FileNotFoundError:
            raise DatasetError(f"{folders[0]} has no tokenizer.json: copy the one that made its ids there") from None
        for folder, manifest in zip(folders, manifests):
            refuse_changed(folder, manifest)
        statistics = {
            "merged": [os.fspath(path) for path in paths],
            "linked": link,
            "seconds": round(time.monotonic() - began, 3),
        }
        write_json(building / "stats.json", statistics)
        merged.write(building)
    return Merged(merged, already_done=False)


Move = tuple[int, Shard, Shard]
"""The number of the dataset, its shard, and the shard in the result."""


def _renumbered(manifests: list[Manifest]) -> tuple[dict[str, Split], list[Move]]:
    """The splits of the result, and where each shard comes from."""
    splits: dict[str, Split] = {}
    moves: list[Move] = []
    for split in SPLITS:
        shards: list[Shard] = []
        first_run = 0
        for at, manifest in enumerate(manifests):
            for shard in manifest.splits[split].shards:
                file, index = Shard.names(split, len(shards))
                shards.append(replace(shard, file=file, index=index, run=shard.run + first_run))
                moves.append((at, shard, shards[-1]))
            first_run += len(manifest.runs)
        splits[split] = Split.of(tuple(shards))
    return splits, moves


def _holds(out: Path, merged: Manifest) -> bool:
    """Whether the folder has this dataset."""
    try:
        found = Manifest.read(out)
    except DatasetError:
        return False
    # Rules that are newer than the folder have no count in it.
    if replace(found, created_by="", ledger=ledger.add([found.ledger])) != merged:
        return False
    sizes = {out / shard.file: shard.bytes for shard in found.shards}
    refuse_unless_whole(out, sizes)
    return True


def _refuse_different(first: Path, ours: Manifest, other: Path, theirs: Manifest) -> None:
    for name, mine, its in (
        ("tokenizer", ours.tokenizer.fingerprint, theirs.tokenizer.fingerprint),
        ("dtype", ours.dtype, theirs.dtype),
        ("vocabulary size", ours.vocab_size, theirs.vocab_size),
        ("end id", ours.end_id, theirs.end_id),
        ("packed sequence length", ours.sequence_length, theirs.sequence_length),
        ("pad id", ours.pad_id, theirs.pad_id),
    ):
        if mine != its:
            raise DatasetError(
                f"{first} and {other} cannot be merged: their {name} differs "
                f"({'none' if mine is None else mine} and {'none' if its is None else its}); prepare both alike"
            )


def _copy_or_link(source: Path, target: Path, checksum: str, most: int, link: bool) -> None:
    """`most`: a file with more bytes is refused before it is copied, which could take hours."""
    try:
        if link:
            os.link(source, target)
            return
        copy_file(source, target, most)
    except FileNotFoundError:
        raise DatasetError(f"{source} is missing: run `ramlet data verify {source.parent.parent}`") from None
    except (OSError, shutil.SameFileError) as error:
        if link:
            raise DatasetError(
                f"cannot link {source}: {error.strerror}; without {option('link')} it is copied instead"
            ) from None
        raise
    if file_checksum(target) != checksum:
        raise DatasetError(f"{source} is damaged: its checksum differs from the manifest")


def _merged(manifests: list[Manifest], splits: dict[str, Split]) -> Manifest:
    first = manifests[0]
    limits = [one.max_tokens for one in manifests if one.max_tokens is not None]
    fractions = {one.val_fraction for one in manifests}
    documents = sum(split.documents for split in splits.values())
    packings = [one.packed for one in manifests if one.packed is not None]
    return replace(
        first,
        created_by="",
        packed=reduce(add, packings) if packings else None,
        max_tokens=max(limits) if len(limits) == len(manifests) else None,
        tokens_per_shard=max(one.tokens_per_shard for one in manifests),
        # If they differ, the actual fraction in the result.
        val_fraction=first.val_fraction if len(fractions) == 1 else splits["val"].documents / max(1, documents),
        splits=splits,
        ledger=ledger.add(one.ledger for one in manifests),
        lengths=add_lengths(one.lengths for one in manifests),
        examples=first_examples((one.examples for one in manifests), EXAMPLES),
        runs=[run for one in manifests for run in one.runs],
    )
