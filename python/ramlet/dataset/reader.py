"""`ramlet.Dataset`: the ids of a dataset, by document or by position.

    dataset = ramlet.Dataset("my-dataset")
    dataset.document("train", 41)             # its ids, including the end id
    for ids in dataset.documents("val"): ...
    dataset.tokens("train", 1_000, 2_000)     # of all shards of the split as if they were one

Files are read, not memory-mapped: mapped pages count as resident. In memory are the manifest and one block, or one
document if that is larger. A file is opened for each read (about 10 microseconds) and closed again, so a dataset has no
state: threads can share it, it can be pickled, and it may have more shards than a process may have open files.
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
from ramlet.inputs.paths import check_path
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import open_regular

if TYPE_CHECKING:
    from ramlet.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[Any]
"""uint16 or uint32."""
Ends = npt.NDArray[np.uint64]

BLOCK_IDS = 1 << 19
BLOCK_ENDS = 1 << 15
END_BYTES = 8


class Dataset:
    """A dataset on disk, opened for reading.

    dataset = ramlet.Dataset("my-dataset")
    dataset.splits["train"].tokens, dataset.tokenizer.decode(dataset.document("train", 0))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path(path)
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._first: dict[str, list[int]] = {}

    @property
    def splits(self) -> dict[str, Split]:
        """`train` and `val`, each with its shards and counts."""
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
        """The id after every document; None if there is none."""
        return self.manifest.end_id

    @property
    def sequence_length(self) -> int | None:
        """Of a packed dataset."""
        return self.manifest.sequence_length

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        from ramlet.tokenizer.tokenizer import Tokenizer

        return Tokenizer.load(self.path / self.manifest.tokenizer.file)

    def shards(self, split: str) -> tuple[Shard, ...]:
        """The files of a split, in order."""
        if split not in self.splits:
            raise SettingsError(f"unknown split {split!r}: use train or val")
        return self.splits[split].shards

    def document_count(self, split: str) -> int:
        """The number of documents; in a packed dataset, of pieces."""
        return self._first_documents(split)[-1]

    def document(self, split: str, number: int) -> Ids:
        """The ids of one document, numbered from 0; in a packed dataset those of one piece, without padding."""
        return self._read_ids(*self._place(split, number))

    def beginning(self, split: str, number: int, most: int) -> tuple[Ids, int]:
        """At most `most` ids that the document begins with, and how many it has."""
        shard, start, stop = self._place(split, number)
        return self._read_ids(shard, start, min(stop, start + most)), stop - start

    def _place(self, split: str, number: int) -> tuple[Shard, int, int]:
        firsts = self._first_documents(split)
        if not 0 <= number < firsts[-1]:
            raise IndexError(
                f"{self.path} has {plural(int(firsts[-1]), 'document')} in {split}: number {number:,} does not exist"
            )
        at = bisect_right(firsts, number) - 1
        shard, within = self.shards(split)[at], number - firsts[at]
        # A document begins where the previous one ends; the first of a shard has none before it.
        ends = self._read_ends(shard, max(within - 1, 0), within + 1)
        start = self.starts(ends[-1:], int(ends[0]) if within else 0)
        return shard, int(start[0]), int(ends[-1])

    def documents(self, split: str) -> Iterator[Ids]:
        """Every document's ids, in order."""
        for ids, starts, ends in self.document_blocks(split):
            for start, end in zip(starts.tolist(), ends.tolist()):
                yield ids[start:end]

    def document_blocks(self, split: str, block_ids: int = BLOCK_IDS) -> Iterator[tuple[Ids, Ends, Ends]]:
        """Whole documents, many at a time: ids, and where in them each document starts and ends.

        A block has at most `block_ids` ids, or is one document that has more.
        """
        for shard, base, stop, starts, ends in self._groups(split, block_ids):
            yield self._read_ids(shard, base, stop), starts, ends

    def document_parts(self, split: str, block_ids: int = BLOCK_IDS) -> Iterator[tuple[Ids, Ends, Ends]]:
        """The same, but a document with more ids comes in several blocks: the first has only its start, the last only
        its end, those in between neither.
        """
        for shard, base, stop, starts, ends in self._groups(split, block_ids):
            for at in range(base, max(stop, base + 1), block_ids):
                until = min(at + block_ids, stop)
                begun, ended = starts if at == base else starts[:0], ends if until == stop else ends[:0]
                yield self._read_ids(shard, at, until), begun, ended - np.uint64(at - base)

    def longest(self, split: str) -> int:
        """The number of ids of the longest document."""
        groups = self._groups(split, BLOCK_IDS)
        return max((int((ends - starts).max()) for _, _, _, starts, ends in groups), default=0)

    def _groups(self, split: str, block_ids: int) -> Iterator[tuple[Shard, int, int, Ends, Ends]]:
        """Of documents, by their ids: the shard, where they start and stop in it, and each of them from there."""
        for shard in self.shards(split):
            before = 0
            for ends in self.end_blocks(shard):
                starts = self.starts(ends, before)
                first = 0
                while first < len(ends):
                    base = int(starts[first])
                    after = max(int(np.searchsorted(ends, np.uint64(base + block_ids), "right")), first + 1)
                    offset = np.uint64(base)
                    yield shard, base, int(ends[after - 1]), starts[first:after] - offset, ends[first:after] - offset
                    first = after
                before = int(ends[-1])

    def end_blocks(self, shard: Shard) -> Iterator[Ends]:
        """The content of the shard's .idx, in bounded blocks."""
        count = self._documents_in(shard)
        last = 0
        for start in range(0, count, BLOCK_ENDS):
            ends = self._read_ends(shard, start, min(start + BLOCK_ENDS, count))
            if int(ends[0]) < last or bool((ends[1:] < ends[:-1]).any()) or int(ends[-1]) > shard.tokens:
                raise DatasetError(f"{self.path / shard.index} is damaged: an end of a document is not in its place")
            last = int(ends[-1])
            yield ends
        # Without this check, ids after the last end would be dropped silently.
        if self.manifest.packed is None and last != shard.tokens:
            raise DatasetError(
                f"{self.path / shard.index} is damaged: its documents end at {last:,}, the shard at {shard.tokens:,}"
            )

    def starts(self, ends: Ends, before: int) -> Ends:
        """Where documents begin, given their ends and the end of the one before them."""
        return document_starts(ends, before, self.sequence_length)

    def tokens(self, split: str, start: int = 0, stop: int | None = None) -> Ids:
        """The ids from `start` up to `stop` of a split, across shards; bounds as in a slice."""
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
        """All ids of a split as they are on disk, block by block."""
        for shard in self.shards(split):
            for start in range(0, shard.tokens, block_ids):
                yield self._read_ids(shard, start, min(start + block_ids, shard.tokens))

    def _documents_in(self, shard: Shard) -> int:
        # A document may be packed as several pieces, so there only the index has the number.
        if self.manifest.packed is None:
            return shard.documents
        try:
            return (self.path / shard.index).stat().st_size // END_BYTES
        except OSError as error:
            raise _unreadable(self.path / shard.index, error) from None

    def _first_documents(self, split: str) -> list[int]:
        """The number of the first document of each shard, followed by the total."""
        if split not in self._first:
            counts = [self._documents_in(shard) for shard in self.shards(split)]
            self._first[split] = [0, *accumulate(counts)]
        return self._first[split]

    def _read_ids(self, shard: Shard, start: int, stop: int) -> Ids:
        if start > stop:
            raise DatasetError(
                f"{self.path / shard.index} is damaged: its ends are not increasing; run `ramlet data verify`"
            )
        if stop > shard.tokens:
            raise DatasetError(
                f"{self.path / shard.index} is damaged: a document ends at {stop:,}, the shard at {shard.tokens:,}"
            )
        return read_at(self.path / shard.file, self.dtype, start, stop)

    def _read_ends(self, shard: Shard, start: int, stop: int) -> Ends:
        return read_at(self.path / shard.index, np.dtype("<u8"), start, stop)

    def __repr__(self) -> str:
        counts = ", ".join(f"{plural(split.tokens, 'token')} in {name}" for name, split in self.splits.items())
        return f"<ramlet.Dataset {self.path}: {counts}>"


def document_starts(ends: Ends, before: int, sequence_length: int | None) -> Ends:
    """Where documents begin, given their ends and the end of the one before: at the previous end.

    A piece of a packed dataset that ends in a later sequence begins with that sequence:

    >>> document_starts(np.array([3, 5, 8, 11], np.uint64), 0, 4).tolist()
    [0, 4, 5, 8]
    """
    previous = np.concatenate([np.asarray([before], np.uint64), ends[:-1]])
    if not sequence_length:
        return previous
    size = np.uint64(sequence_length)
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
        return DatasetError(f"{path} is missing: run `ramlet data verify` to see what else is wrong")
    return DatasetError(f"cannot read {path}: {error.strerror}")
