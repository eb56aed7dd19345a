"""`dataset_metadata.json`, the manifest of a dataset, written last.

All code that creates, changes or reads one uses `Manifest`; reading and writing gives the same file. Reading checks
that every field is there with its type, so that other modules need not. Whether the numbers are correct is checked by
`verify`. An array of ids (`NAME.npy`) has the same manifest next to it, without shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from ramlet.dataset import ledger as ledgers
from ramlet.dataset.ledger import Ledger
from ramlet.errors import DatasetError, option
from ramlet.inputs.paths import nearest_path
from ramlet.runtime.atomic_files import replacing, write_json_to
from ramlet.runtime.folder_lock import writer_of
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json

NAME = "dataset_metadata.json"
TOKENIZER = "tokenizer.json"
FORMAT = "ramlet dataset"
VERSION = 1
SPLITS = ("train", "val")
ID_BYTES = {"uint16": 2, "uint32": 4}

T = TypeVar("T", "TokenizerNote", "Packing", "Shard")

Examples = dict[str, list[dict[str, Any]]]
"""What each rule dropped."""

# Nothing else: a foreign manifest must not point to files outside of its folder.
_SHARD_FILE = re.compile(r"(train|val)/shard_(\d{5,})\.(bin|idx)")


@dataclass(frozen=True)
class Shard:
    """A file of ids, and the file with the ends of its documents."""

    bytes: int
    documents: int
    file: str
    index: str
    index_xxh64: str
    tokens: int
    xxh64: str
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

    def __add__(self, more: Split) -> Split:
        return Split(self.tokens + more.tokens, self.documents + more.documents, self.shards + more.shards)


@dataclass(frozen=True)
class Packing:
    sequence_length: int
    pad_id: int
    sequences: int
    padding: int
    truncated_documents: int
    pieces: int

    def __add__(self, more: Packing) -> Packing:
        """The sum of two that have the same sequence length."""
        counts = ("sequences", "padding", "truncated_documents", "pieces")
        return replace(self, **{name: getattr(self, name) + getattr(more, name) for name in counts})


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
    max_tokens: int | None
    tokens_per_shard: int
    val_fraction: float
    packed: Packing | None
    splits: dict[str, Split]
    ledger: Ledger
    lengths: list[int] = field(default_factory=list)
    examples: Examples = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    created_by: str = ""

    @property
    def of_array(self) -> bool:
        """Whether the ids are in one .npy file instead of shards."""
        return self.tokenizer.file != TOKENIZER

    @property
    def id_bytes(self) -> int:
        return ID_BYTES[self.dtype]

    @property
    def sequence_length(self) -> int | None:
        """Of a packed dataset."""
        return self.packed.sequence_length if self.packed else None

    @property
    def pad_id(self) -> int | None:
        """Of a packed dataset."""
        return self.packed.pad_id if self.packed else None

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
            raise DatasetError(f"{folder} is a file: give the folder of a dataset") from None
        return _read(record, path, TOKENIZER)

    @classmethod
    def read_beside(cls, npy: Path) -> Manifest | None:
        """The manifest of an array; None if there is none, or that file is something else."""
        path = beside(npy, ".json")
        try:
            record = read_json(path, DatasetError, MANIFEST_BYTES)
        except FileNotFoundError:
            return None
        if isinstance(record, dict) and record.get("format", FORMAT) != FORMAT:
            return None
        return _read(record, path, beside(npy, ".tokenizer.json").name)

    def write(self, result: str | os.PathLike[str]) -> None:
        """Replaces the manifest in the folder, or next to the array, atomically."""
        path = beside(Path(result), ".json") if self.of_array else Path(result) / NAME
        with replacing(path) as file:
            write_json_to(file, self.as_json())
            file.flush()
            size = os.fstat(file.fileno()).st_size
            if size > MANIFEST_BYTES:  # which no one could read
                raise DatasetError(
                    f"{path} would have {size / 1e6:,.1f} MB, more than the {MANIFEST_BYTES / 1e6:g} MB of a manifest: "
                    f"make fewer shards, with a larger {option('tokens_per_shard')}"
                )

    def as_json(self) -> dict[str, Any]:
        from ramlet import __version__

        record = asdict(self)
        for split in record["splits"].values():
            shards = split.pop("shards")
            if not self.of_array:
                split["shards"] = list(shards)
        made_by = record.pop("created_by") or f"ramlet {__version__}"
        return {"format": FORMAT, "version": VERSION, "created_by": made_by, **record}


def add_lengths(histograms: Iterable[list[int]]) -> list[int]:
    """
    >>> add_lengths([[1, 2], [0, 1, 5]])
    [1, 3, 5]
    """
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def first_examples(found: Iterable[Examples], most: int) -> Examples:
    """The first examples of each rule."""
    kept: Examples = {}
    for part in found:
        for rule, examples in part.items():
            kept[rule] = [*kept.get(rule, []), *examples][:most]
    return kept


def beside(npy: Path, ending: str) -> Path:
    """A file that belongs to an array: its name plus `.json` or `.tokenizer.json`."""
    return npy.with_name(npy.name + ending)


def _why_missing(folder: Path) -> str:
    if not folder.exists():
        return f"no such folder: {folder}{nearest_path(os.fspath(folder), folder_wanted=True)}"
    if writer := writer_of(folder):
        return f"{folder} is being written ({writer}): wait for it to finish"
    if (folder / ".work").is_dir():
        return f"{folder} is not finished: run the same `ramlet prepare` again to resume"
    return f"{folder} is not a dataset: it has no {NAME}; create one with `ramlet prepare`"


class _Record:
    """One JSON object of the manifest; reads fields and checks their types."""

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
        if not _is_count(value):
            raise self.wrong(key, "a count")
        return int(value)

    def count_or_none(self, key: str) -> int | None:
        return None if self.value.get(key) is None else self.count(key)

    def text(self, key: str) -> str:
        value = self.value.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def as_type(self, kind: type[T]) -> T:
        """A dataclass whose fields are all counts or strings."""
        readers = {"int": self.count, "str": self.text}
        return kind(**{each.name: readers[each.type](each.name) for each in fields(kind)})  # type: ignore[arg-type, index]

    def object(self, key: str) -> _Record:
        return _Record(self.value.get(key), self.path, f"{self.where}.{key}".strip("."))

    def list(self, key: str) -> list[Any]:
        value = self.value.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value


def _is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _read(value: Any, path: Path, tokenizer_file: str) -> Manifest:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise DatasetError(f"{path} was not written by ramlet: its format is not {FORMAT!r}")
    record = _Record(value, path, "")
    version = record.count("version")
    if version > VERSION:
        raise DatasetError(f"{path} has version {version}, but this ramlet reads {VERSION}: install a newer ramlet")
    dtype = record.text("dtype")
    if dtype not in ID_BYTES:
        raise record.wrong("dtype", "uint16 or uint32")
    tokenizer = record.object("tokenizer").as_type(TokenizerNote)
    if tokenizer.file != tokenizer_file:
        raise record.wrong("tokenizer.file", tokenizer_file)
    packed = None
    if record.value.get("packed") is not None:
        packed = record.object("packed").as_type(Packing)
        if packed.sequence_length < 1:
            raise record.wrong("packed.sequence_length", "at least 1")
    fraction = record.value.get("val_fraction")
    if not isinstance(fraction, (int, float)) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise record.wrong("val_fraction", "between 0 and 1")
    splits = record.object("splits")
    lengths = record.list("lengths")
    if len(lengths) > 64 or not all(map(_is_count, lengths)):
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
    return ledgers.read(account.value, account.wrong)


def _run(record: _Record) -> dict[str, Any]:
    record.text("id")
    return {**record.value, "ledger": _ledger(record)}


def _examples(record: _Record) -> Examples:
    for rule in record.value:
        if not all(isinstance(one, dict) for one in record.list(rule)):
            raise record.wrong(rule, "a list of objects")
    return record.value


def _split(record: _Record, name: str, dtype: str) -> Split:
    shards, seen = [], set()
    for at, value in enumerate(record.list("shards")):
        one = _Record(value, record.path, f"{record.where}.shards[{at}]")
        shard = one.as_type(Shard)
        for key, file, suffix in (("file", shard.file, "bin"), ("index", shard.index, "idx")):
            match = _SHARD_FILE.fullmatch(file)
            if match is None or (match[1], match[3]) != (name, suffix):
                raise one.wrong(key, f"of the form {name}/shard_00000.{suffix}")
            if file in seen:
                raise DatasetError(f"{record.path} is damaged: {file} is listed twice")
            seen.add(file)
        if shard.bytes != shard.tokens * ID_BYTES[dtype]:
            raise one.wrong("bytes", f"{ID_BYTES[dtype]} for each of its tokens")
        shards.append(shard)
    return Split(record.count("tokens"), record.count("documents"), tuple(shards))
