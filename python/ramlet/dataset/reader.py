"""`ramlet.Dataset`: the ids of a dataset, by document or by place.

    dataset = ramlet.Dataset("my-dataset")
    dataset.document("train", 41)             # its ids, the end id included
    for ids in dataset.documents("val"): ...
    dataset.tokens("train", 1_000, 2_000)     # of all shards of the split as if they were one

Files are read and never mapped: mapped pages count as resident. What is held is the manifest and one block,
or one document where that is larger. A file is opened for each read (about 10 microseconds) and closed again,
so a dataset has no state: it may be shared by threads, pickled, and have more shards than a process may have
open files.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ramlet.dataset.manifest import Manifest, Shard, Split
from ramlet.errors import DatasetError, SettingsError
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import open_regular

if TYPE_CHECKING:
    from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["BLOCK_IDS", "Dataset", "Ids", "piece_starts", "read_at"]

Ids = npt.NDArray[Any]
"""uint16 or uint32."""
Ends = npt.NDArray[np.uint64]

BLOCK_IDS = 1 << 19
BLOCK_ENDS = 1 << 15
END_BYTES = 8


class Dataset:
    """A dataset on disk, opened to be read.

    dataset = ramlet.Dataset("my-dataset")
    dataset.splits["train"].tokens, dataset.tokenizer.decode(dataset.document("train", 0))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)

    @property
    def splits(self) -> dict[str, Split]:
        """`train` and `val`, each with its shards and their figures."""
        return self.manifest.splits

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids on disk: little-endian uint16 or uint32."""
        return np.dtype(f"<u{self.manifest.id_bytes}")

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer; every id is below it."""
        return self.manifest.vocab_size

    @property
    def end_id(self) -> int | None:
        """The id behind every document; None where there is none."""
        return self.manifest.end_id

    @property
    def sequence_length(self) -> int | None:
        """Of a packed dataset."""
        return self.manifest.packed.sequence_length if self.manifest.packed else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        from ramlet.tokenizer.tokenizer import Tokenizer

        return Tokenizer.load(self.path / self.manifest.tokenizer.file)

    def shards(self, split: str) -> tuple[Shard, ...]:
        """The files of a split, in order."""
        if split not in self.splits:
            raise SettingsError(f"a dataset has the splits train and val, not {split!r}")
        return self.splits[split].shards

    def document_count(self, split: str) -> int:
        """How many there are for `document`; in a packed dataset the pieces of them."""
        return self._first_documents(split)[-1]

    def document(self, split: str, number: int) -> Ids:
        """The ids of one document, counted from 0; in a packed dataset those of one piece, without padding."""
        firsts = self._first_documents(split)
        if not 0 <= number < firsts[-1]:
            raise IndexError(
                f"{self.path} has {plural(int(firsts[-1]), 'document')} in {split}: there is no number {number:,}"
            )
        at = bisect_right(firsts, number) - 1
        shard, within = self.shards(split)[at], number - firsts[at]
        # The end of the one before is where this one begins; the first of a shard has none before it.
        before = 1 if within else 0
        ends = self._read_ends(shard, within - before, within + 1)
        start, end = (int(ends[0]) if before else 0), int(ends[-1])
        if self.sequence_length:
            start = int(piece_starts(ends[-1:], start, self.sequence_length)[0])
        return self._read_ids(shard, start, end)

    def documents(self, split: str) -> Iterator[Ids]:
        """Every document's ids, in order."""
        for ids, starts, ends in self.document_blocks(split):
            for start, end in zip(starts.tolist(), ends.tolist()):
                yield ids[start:end]

    def document_blocks(self, split: str, block_ids: int = BLOCK_IDS) -> Iterator[tuple[Ids, Ends, Ends]]:
        """Whole documents, many at a time: ids, and where in them each document starts and ends.

        A block has at most `block_ids` ids, or is one document that has more.
        """
        for shard in self.shards(split):
            before = 0
            for ends in self.end_blocks(shard):
                starts = self.starts(ends, before)
                first = 0
                while first < len(ends):
                    base = int(starts[first])
                    behind = max(int(np.searchsorted(ends, np.uint64(base + block_ids), "right")), first + 1)
                    ids = self._read_ids(shard, base, int(ends[behind - 1]))
                    offset = np.uint64(base)
                    yield ids, starts[first:behind] - offset, ends[first:behind] - offset
                    first = behind
                before = int(ends[-1])

    def end_blocks(self, shard: Shard) -> Iterator[Ends]:
        """What the shard's .idx holds, a bounded stretch at a time."""
        count = self._documents_in(shard)
        last = 0
        for start in range(0, count, BLOCK_ENDS):
            ends = self._read_ends(shard, start, min(start + BLOCK_ENDS, count))
            last = int(ends[-1])
            yield ends
        # Without a look at it, ids behind the last end would be left out and no one would know.
        if self.manifest.packed is None and last != shard.tokens:
            raise DatasetError(
                f"{self.path / shard.index} is damaged: its documents end at {last:,}, the shard at {shard.tokens:,}"
            )

    def starts(self, ends: Ends, before: int) -> Ends:
        """Where documents begin, given their ends and the end of the one before them."""
        if self.sequence_length:
            return piece_starts(ends, before, self.sequence_length)
        return np.concatenate([np.asarray([before], np.uint64), ends[:-1]])

    def tokens(self, split: str, start: int = 0, stop: int | None = None) -> Ids:
        """The ids from `start` up to `stop` of a split, whatever shards they lie in; bounds as in a slice."""
        start, stop, _ = slice(start, stop).indices(self.splits[split].tokens if self.shards(split) else 0)
        result = np.empty(max(0, stop - start), self.dtype)
        first = 0
        for shard in self.shards(split):
            begin, end = max(start, first), min(stop, first + shard.tokens)
            if begin < end:
                result[begin - start : end - start] = self._read_ids(shard, begin - first, end - first)
            first += shard.tokens
        return result

    def blocks(self, split: str, block_ids: int = BLOCK_IDS) -> Iterator[Ids]:
        """All ids of a split as they lie on disk, a block at a time."""
        for shard in self.shards(split):
            for start in range(0, shard.tokens, block_ids):
                yield self._read_ids(shard, start, min(start + block_ids, shard.tokens))

    def _documents_in(self, shard: Shard) -> int:
        # A document may be packed as several pieces, so there the index alone knows.
        if self.manifest.packed is None:
            return shard.documents
        try:
            return (self.path / shard.index).stat().st_size // END_BYTES
        except OSError as error:
            raise _unreadable(self.path / shard.index, error) from None

    def _first_documents(self, split: str) -> list[int]:
        """The number of the first document of each shard, and behind the last one how many there are."""
        if split not in self._first:
            counts = [self._documents_in(shard) for shard in self.shards(split)]
            self._first[split] = [0, *accumulate(counts)]
        return self._first[split]

    @cached_property
    def _first(self) -> dict[str, list[int]]:
        return {}

    def _read_ids(self, shard: Shard, start: int, stop: int) -> Ids:
        if start > stop:
            raise DatasetError(
                f"{self.path / shard.index} is damaged: its ends do not rise; `ramlet data verify` tells"
            )
        return read_at(self.path / shard.file, self.dtype, start, stop)

    def _read_ends(self, shard: Shard, start: int, stop: int) -> Ends:
        return read_at(self.path / shard.index, np.dtype("<u8"), start, stop)

    def __repr__(self) -> str:
        figures = ", ".join(f"{plural(split.tokens, 'token')} in {name}" for name, split in self.splits.items())
        return f"<ramlet.Dataset {self.path}: {figures}>"


def piece_starts(ends: Ends, before: int, length: int) -> Ends:
    """Where the pieces of packed sequences begin: at the end before, or with the next sequence if they end beyond.

    >>> piece_starts(np.array([3, 5, 8, 11], np.uint64), 0, 4).tolist()
    [0, 4, 5, 8]
    """
    previous = np.concatenate([np.asarray([before], np.uint64), ends[:-1]])
    size = np.uint64(length)
    boundary = (previous + size - np.uint64(1)) // size * size
    return np.where(ends > boundary, boundary, previous)


def read_at(path: Path, dtype: np.dtype[Any], start: int, stop: int) -> npt.NDArray[Any]:
    """Items `start` up to `stop` of a headerless file."""
    result = np.empty(stop - start, dtype)
    view = result.view(np.uint8).data
    try:
        with open_regular(path, DatasetError) as file:
            file.seek(start * dtype.itemsize)
            done = 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise DatasetError(f"{path} is damaged: it is shorter than the manifest says")
                done += count
    except OSError as error:
        raise _unreadable(path, error) from None
    return result


def _unreadable(path: Path, error: OSError) -> DatasetError:
    if isinstance(error, FileNotFoundError):
        return DatasetError(f"{path} is missing: `ramlet data verify` tells what else is")
    return DatasetError(f"cannot read {path}: {error.strerror}")
