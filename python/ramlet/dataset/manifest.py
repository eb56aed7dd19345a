"""`dataset_metadata.json`, the manifest: the truth about a dataset, written last.

Whoever makes, changes or reads one does it through `Manifest`: read, then written again, it is the same file. Reading
checks that every field is there with its type, so that the other modules need not. Whether the numbers are true is what
`verify` finds out. An array of ids (`NAME.npy`) has the same manifest beside it, without shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ramlet.dataset import ledger as ledgers
from ramlet.dataset.ledger import Ledger
from ramlet.errors import DatasetError
from ramlet.inputs.paths import nearest_path
from ramlet.runtime.atomic_files import write_json
from ramlet.runtime.folder_lock import writer_of
from ramlet.runtime.small_files import MANIFEST as MANIFEST_BYTES
from ramlet.runtime.small_files import read_json

__all__ = [
    "NAME",
    "SPLITS",
    "TOKENIZER",
    "Examples",
    "Manifest",
    "Packing",
    "Shard",
    "Split",
    "TokenizerNote",
    "add_lengths",
    "beside",
    "first_examples",
]

NAME = "dataset_metadata.json"
TOKENIZER = "tokenizer.json"
FORMAT = "ramlet dataset"
VERSION = 1
SPLITS = ("train", "val")
ID_BYTES = {"uint16": 2, "uint32": 4}

Examples = dict[str, list[dict[str, Any]]]
"""Of what each rule dropped."""

# Nothing else: a manifest from elsewhere must not lead to files outside of its folder.
_SHARD_FILE = re.compile(r"(train|val)/shard_(\d{5,})\.(bin|idx)")


@dataclass(frozen=True)
class Shard:
    """One file of ids and the file of the places where its documents end."""

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
        """Both together, in sequences of one length."""
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
        """Whether all ids are in one .npy file, not in shards."""
        return self.tokenizer.file != TOKENIZER

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
        return _read(record, path, TOKENIZER)

    @classmethod
    def read_beside(cls, npy: Path) -> Manifest | None:
        """That of an array; None where there is none, or something else of that name."""
        path = beside(npy, ".json")
        try:
            record = read_json(path, DatasetError, MANIFEST_BYTES)
        except FileNotFoundError:
            return None
        if isinstance(record, dict) and record.get("format", FORMAT) != FORMAT:
            return None
        return _read(record, path, beside(npy, ".tokenizer.json").name)

    def write(self, result: str | os.PathLike[str]) -> None:
        """Takes the place of the manifest in the folder, or beside the array, whole or not at all."""
        path = Path(result)
        write_json(beside(path, ".json") if self.of_array else path / NAME, self.as_json())

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        for split in record["splits"].values():
            shards = split.pop("shards")
            if not self.of_array:
                split["shards"] = list(shards)
        made_by = record.pop("created_by") or _this_version()
        return {"format": FORMAT, "version": VERSION, "created_by": made_by, **record}


def add_lengths(histograms: Iterable[list[int]]) -> list[int]:
    """
    >>> add_lengths([[1, 2], [0, 1, 5]])
    [1, 3, 5]
    """
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def first_examples(found: Iterable[Examples], most: int) -> Examples:
    """The first of each rule, in their order."""
    kept: Examples = {}
    for part in found:
        for rule, examples in part.items():
            kept[rule] = [*kept.get(rule, []), *examples][:most]
    return kept


def beside(npy: Path, ending: str) -> Path:
    """What belongs to an array: `.json` and `.tokenizer.json` behind its name."""
    return npy.with_name(npy.name + ending)


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
        if not _is_count(value):
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


def _is_count(value: Any) -> bool:
    """A whole number that a file can have of something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _read(value: Any, path: Path, tokenizer_file: str) -> Manifest:
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
    if tokenizer.file != tokenizer_file:
        raise note.wrong("file", tokenizer_file)
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
