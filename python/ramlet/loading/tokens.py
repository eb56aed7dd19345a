"""A split of a dataset, or a part of an array, as one stream of ids.

open_tokens("my-dataset", "val")                    all shards of the split, one after the other
open_tokens("corpus.npy", "train", 0.1)             the first nine tenths
open_tokens("corpus.txt", "train", 0.1)             the same, of corpus.npy next to it
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramlet.dataset.manifest import SPLITS, Manifest, beside
from ramlet.errors import DatasetError, SettingsError, option
from ramlet.inputs.paths import nearest_path
from ramlet.loading.npy import NpyFile, largest_id, sampled_digest
from ramlet.runtime.digest import digest
from ramlet.runtime.plurals import plural


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One stream of ids, and what is known about them."""

    name: str
    """As the user gave it."""

    split: str
    folder: Path
    shards: tuple[tuple[str, int], ...]
    """File in the folder, and the number of ids in it."""

    shard_count: int
    header: int = 0
    """Bytes before the ids in a file."""

    dtype: str
    start: int = 0
    """The first id of the part that is used."""

    count: int
    """Ids in that part."""

    total: int
    """Ids in all splits."""

    known_vocab_size: int | None
    end_id: int | None
    tokenizer_fingerprint: str | None
    tokenizer_file: Path | None
    fingerprint: str
    """A hash of the ids; a copy has the same."""

    packed_length: int | None = None
    pad_id: int | None = None

    def vocab_size(self) -> int:
        """That of the tokenizer; if it is unknown, one more than the largest id, which reads everything."""
        if self.known_vocab_size is not None:
            return self.known_vocab_size
        return largest_id(NpyFile.read(Path(self.name))) + 1

    def examples(self, seq_len: int, stride: int) -> int:
        """The number of sequences; an error if there is none."""
        count = self.count // seq_len if self.packed_length else (self.count - 1 - seq_len) // stride + 1
        if count < 1:
            raise DatasetError(
                f"{self.name} has {plural(self.count, 'token')} in {self.split}, "
                f"but one sequence needs {seq_len + 1:,}: "
                f"choose a smaller {option('seq_len')}, or add more text"
            )
        return count

    def spec(self, *, stride: int, examples: int, weight: int, shifted: bool) -> dict[str, Any]:
        """For the native core."""
        return {
            "folder": os.fspath(self.folder),
            "shards": list(self.shards),
            "header": self.header,
            "dtype": self.dtype,
            "start": self.start,
            "stride": self.packed_length or stride,
            "examples": examples,
            "weight": weight,
            "shifted": shifted and not self.packed_length,
            "pad_id": self.pad_id,
            "end_id": self.end_id,
            "vocab_size": self.known_vocab_size,
        }


def open_tokens(data: str | os.PathLike[str], split: str, val_fraction: float) -> Tokens:
    if split not in SPLITS:
        raise SettingsError(f"unknown split {split!r}: use train or val")
    if not isinstance(val_fraction, (int, float)) or not 0 <= val_fraction < 1:
        raise SettingsError(f"val_fraction must be at least 0 and below 1, not {val_fraction!r}")
    path = Path(data)
    if path.is_dir():
        return _of_folder(path, split)
    npy = path.with_suffix(".npy")
    if path == npy or npy.is_file():
        return _of_array(npy, split, val_fraction)
    if not path.exists():
        raise DatasetError(f"no such file or folder: {path}{nearest_path(os.fspath(path))}")
    raise DatasetError(
        f"{path} is text, and there is no {npy} with its ids: prepare it with {option('output_format', 'npy')}"
    )


def _of_folder(path: Path, split: str) -> Tokens:
    manifest = Manifest.read(path)
    shards = manifest.splits[split].shards
    tokens = sum(shard.tokens for shard in shards)
    if not tokens:
        remedy = (
            f"prepare it again with a larger {option('val_fraction')}, or use {SPLITS[0]}"
            if split == "val"
            else f"`ramlet data inspect {path}` shows what it has; prepare it again with more text"
        )
        raise DatasetError(f"{path} has nothing in {split}: {remedy}")
    parts = [b"ramlet tokens 1", manifest.dtype.encode()]
    parts += [f"{shard.tokens} {shard.xxh64}".encode() for shard in shards]
    return Tokens(
        name=os.fspath(path),
        split=split,
        folder=path,
        shards=tuple((shard.file, shard.tokens) for shard in shards),
        shard_count=len(shards),
        dtype=f"u{manifest.id_bytes}",
        count=tokens,
        total=sum(shard.tokens for shard in manifest.shards),
        known_vocab_size=manifest.vocab_size,
        end_id=manifest.end_id,
        tokenizer_fingerprint=manifest.tokenizer.fingerprint,
        tokenizer_file=path / manifest.tokenizer.file,
        fingerprint=digest(iter(parts)),
        packed_length=manifest.sequence_length,
        pad_id=manifest.pad_id,
    )


def _of_array(path: Path, split: str, val_fraction: float) -> Tokens:
    npy = NpyFile.read(path)
    manifest = _manifest_of(path)
    held_out = int(npy.length * val_fraction)
    start, stop = (0, npy.length - held_out) if split == "train" else (npy.length - held_out, npy.length)
    if start == stop:
        raise DatasetError(
            f"{path} has nothing in {split}: {option('val_fraction', val_fraction)} leaves no tokens for it"
        )
    return Tokens(
        name=os.fspath(path),
        split=split,
        folder=path.parent,
        shards=((path.name, npy.length),),
        shard_count=1,
        header=npy.header,
        dtype=npy.dtype,
        start=start,
        count=stop - start,
        total=npy.length,
        known_vocab_size=manifest.vocab_size if manifest else None,
        end_id=manifest.end_id if manifest else None,
        tokenizer_fingerprint=manifest.tokenizer.fingerprint if manifest else None,
        tokenizer_file=path.parent / manifest.tokenizer.file if manifest else None,
        fingerprint=sampled_digest(npy),
    )


def _manifest_of(npy: Path) -> Manifest | None:
    """The manifest that `prepare` wrote next to the array; None for an array from another source."""
    try:
        return Manifest.read_beside(npy)
    except OSError as error:
        raise DatasetError(f"cannot read {beside(npy, '.json')}: {error.strerror}") from None
    except DatasetError as error:
        raise DatasetError(
            f"{error}; prepare {npy} again, or remove that file to use the ids without a tokenizer"
        ) from None
