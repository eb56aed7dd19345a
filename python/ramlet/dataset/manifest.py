"""`dataset_metadata.json`, the manifest: the truth about a dataset, written last.

Reading it checks that every field is there with its type, so that the other modules need not. Whether the
numbers are true is what `verify` finds out.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramlet.dataset import ledger as ledgers
from ramlet.dataset.ledger import Ledger
from ramlet.errors import DatasetError
from ramlet.inputs.sources import nearest_path
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.folder_lock import writer_of
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json

__all__ = ["FORMAT", "NAME", "SPLITS", "VERSION", "Manifest", "Packing", "Shard", "Split", "TokenizerNote", "is_count"]

NAME = "dataset_metadata.json"
FORMAT = "ramlet dataset"
VERSION = 1
SPLITS = ("train", "val")
ID_BYTES = {"uint16": 2, "uint32": 4}

# Nothing else: a manifest from elsewhere must not lead to files outside of its folder.
_SHARD_FILE = re.compile(r"(train|val)/shard_(\d{5,})\.(bin|idx)")


@dataclass(frozen=True)
class Shard:
    """One file of ids and the file of the places where its documents end."""

    file: str
    index: str
    tokens: int
    documents: int
    bytes: int
    xxh64: str
    index_xxh64: str
    run: int

    @staticmethod
    def names(split: str, number: int) -> tuple[str, str]:
        """
        >>> Shard.names("train", 7)
        ('train/shard_00007.bin', 'train/shard_00007.idx')
        """
        return f"{split}/shard_{number:05}.bin", f"{split}/shard_{number:05}.idx"


@dataclass(frozen=True)
class Split:
    tokens: int
    documents: int
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: tuple[Shard, ...]) -> Split:
        return cls(sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards), shards)


@dataclass(frozen=True)
class Packing:
    sequence_length: int
    pad_id: int
    sequences: int
    padding: int
    truncated_documents: int
    pieces: int


@dataclass(frozen=True)
class TokenizerNote:
    file: str
    fingerprint: str
    kind: str
    name: str


@dataclass(frozen=True)
class Manifest:
    dtype: str
    vocab_size: int
    tokenizer: TokenizerNote
    end_id: int | None
    packed: Packing | None
    max_tokens: int | None
    tokens_per_shard: int
    val_fraction: float
    splits: dict[str, Split]
    ledger: Ledger
    lengths: list[int] = field(default_factory=list)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    created_by: str = ""

    @property
    def id_bytes(self) -> int:
        return ID_BYTES[self.dtype]

    @property
    def shards(self) -> list[Shard]:
        return [shard for split in self.splits.values() for shard in split.shards]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """The manifest of a dataset folder."""
        folder = Path(folder)
        path = folder / NAME
        try:
            record = read_json(path, DatasetError, MANIFEST_BYTES)
        except FileNotFoundError:
            raise DatasetError(_why_missing(folder)) from None
        except NotADirectoryError:
            raise DatasetError(f"{folder} is a file: name the folder of a dataset") from None
        return _read(record, path)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Takes the place of the folder's manifest, whole or not at all."""
        with replacing(Path(folder) / NAME) as file:
            json.dump(self.as_json(), file, ensure_ascii=False, indent=1)
            file.write("\n")

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        made_by = record.pop("created_by") or _this_version()
        return {"format": FORMAT, "version": VERSION, "created_by": made_by, **record}


def _this_version() -> str:
    from ramlet import __version__

    return f"ramlet {__version__}"


def _why_missing(folder: Path) -> str:
    if not folder.exists():
        return f"no such folder: {folder}{nearest_path(os.fspath(folder), folder_wanted=True)}"
    if writer := writer_of(folder):
        return f"{folder} is being written ({writer}): wait for it"
    if (folder / ".work").is_dir():
        return f"{folder} is not finished: run the same `ramlet prepare` again to go on"
    return f"{folder} is no dataset: it has no {NAME}; ramlet prepare makes one"


class _Record:
    """One JSON object of the manifest, whose fields are taken out with their types checked."""

    def __init__(self, value: Any, path: Path, where: str) -> None:
        self.path, self.where = path, where
        if not isinstance(value, dict):
            raise self.wrong("", "an object")
        self.value: dict[str, Any] = value

    def wrong(self, key: str, what: str) -> DatasetError:
        name = ".".join(part for part in (self.where, key) if part) or "it"
        return DatasetError(f"{self.path} is damaged: {name} is not {what}")

    def count(self, key: str) -> int:
        value: Any = self.value.get(key)
        if not is_count(value):
            raise self.wrong(key, "a count")
        return int(value)

    def count_or_none(self, key: str) -> int | None:
        return None if self.value.get(key) is None else self.count(key)

    def text(self, key: str) -> str:
        value = self.value.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def object(self, key: str) -> _Record:
        return _Record(self.value.get(key), self.path, f"{self.where}.{key}".strip("."))

    def list(self, key: str) -> list[Any]:
        value = self.value.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value


def is_count(value: Any) -> bool:
    """A whole number that a file can have of something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _read(value: Any, path: Path) -> Manifest:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise DatasetError(f"{path} was not written by ramlet: its format is not {FORMAT!r}")
    record = _Record(value, path, "")
    version = record.count("version")
    if version > VERSION:
        raise DatasetError(f"{path} has version {version}, and this ramlet reads {VERSION}: install a newer ramlet")
    dtype = record.text("dtype")
    if dtype not in ID_BYTES:
        raise record.wrong("dtype", "uint16 or uint32")
    note = record.object("tokenizer")
    tokenizer = TokenizerNote(**{key: note.text(key) for key in ("file", "fingerprint", "kind", "name")})
    if tokenizer.file != "tokenizer.json":
        raise note.wrong("file", "tokenizer.json")
    packed = None
    if record.value.get("packed") is not None:
        numbers = record.object("packed")
        packed = Packing(**{key: numbers.count(key) for key in Packing.__dataclass_fields__})
        if packed.sequence_length < 1:
            raise numbers.wrong("sequence_length", "at least 1")
    fraction = record.value.get("val_fraction")
    if not isinstance(fraction, (int, float)) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise record.wrong("val_fraction", "between 0 and 1")
    splits = record.object("splits")
    lengths = record.list("lengths")
    if len(lengths) > 64 or not all(map(is_count, lengths)):
        raise record.wrong("lengths", "a list of at most 64 counts")
    return Manifest(
        dtype=dtype,
        vocab_size=record.count("vocab_size"),
        tokenizer=tokenizer,
        end_id=record.count_or_none("end_id"),
        packed=packed,
        max_tokens=record.count_or_none("max_tokens"),
        tokens_per_shard=record.count("tokens_per_shard"),
        val_fraction=fraction,
        splits={name: _split(splits.object(name), name, dtype) for name in SPLITS},
        ledger=_ledger(record),
        lengths=lengths,
        examples=_examples(record.object("examples")),
        runs=[_run(_Record(run, path, f"runs[{at}]")) for at, run in enumerate(record.list("runs"))],
        created_by=record.text("created_by"),
    )


def _ledger(record: _Record) -> Ledger:
    account = record.object("ledger")
    lacking = ledgers.missing(account.value)
    if lacking:
        raise account.wrong(lacking, "a count, or the counts that belong there")
    return account.value


def _run(record: _Record) -> dict[str, Any]:
    record.text("id")
    _ledger(record)
    return record.value


def _examples(record: _Record) -> dict[str, list[dict[str, Any]]]:
    for rule in record.value:
        if not all(isinstance(one, dict) for one in record.list(rule)):
            raise record.wrong(rule, "a list of objects")
    return record.value


def _split(record: _Record, name: str, dtype: str) -> Split:
    shards, seen = [], set()
    for at, value in enumerate(record.list("shards")):
        one = _Record(value, record.path, f"{record.where}.shards[{at}]")
        texts = {key: one.text(key) for key in ("file", "index", "xxh64", "index_xxh64")}
        counts = {key: one.count(key) for key in ("tokens", "documents", "bytes", "run")}
        for key, suffix in (("file", "bin"), ("index", "idx")):
            match = _SHARD_FILE.fullmatch(texts[key])
            if match is None or (match[1], match[3]) != (name, suffix):
                raise one.wrong(key, f"of the form {name}/shard_00000.{suffix}")
            if texts[key] in seen:
                raise DatasetError(f"{record.path} is damaged: {texts[key]} is listed twice")
            seen.add(texts[key])
        if counts["bytes"] != counts["tokens"] * ID_BYTES[dtype]:
            raise one.wrong("bytes", f"{ID_BYTES[dtype]} for each of its tokens")
        shards.append(Shard(**texts, **counts))  # type: ignore[arg-type]
    return Split(record.count("tokens"), record.count("documents"), tuple(shards))
