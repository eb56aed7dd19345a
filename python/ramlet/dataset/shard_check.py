"""Checks the content of a shard against the format: ids, ends, end ids, padding. In bounded blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ramlet.dataset.manifest import Manifest
from ramlet.dataset.reader import BLOCK_ENDS, BLOCK_IDS, END_BYTES, Ends, Ids, document_starts, read_at


@dataclass(frozen=True)
class Problem:
    """Something wrong in a dataset; prints as one line."""

    file: str
    """As in the manifest, `train/shard_00000.bin`; or the part of the manifest, such as `ledger`."""
    what: str
    example: str = ""
    """Where it was first seen."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.what, self.example) if part)


@dataclass
class ShardCheck:
    """Reads a shard once; `problems` and the counts are set afterwards."""

    folder: Path
    bin: str
    idx: str
    manifest: Manifest
    ends_needed: bool = True
    """Every document must end with the end id; not required of adopted shards."""

    problems: list[Problem] = field(default_factory=list)
    tokens: int = 0
    entries: int = 0
    end_ids: int = 0
    """Documents, or pieces, whose last id is the end id."""
    padding: int = 0
    lengths: list[int] = field(default_factory=lambda: [0] * 64)
    """By floor(log2(ids)), without the end id."""

    def run(self) -> ShardCheck:
        self.tokens = (self.folder / self.bin).stat().st_size // self.manifest.id_bytes
        self.entries = (self.folder / self.idx).stat().st_size // END_BYTES
        before, sound = 0, True
        for first in range(0, self.entries, BLOCK_ENDS):
            ends = read_at(self.folder / self.idx, np.dtype("<u8"), first, min(first + BLOCK_ENDS, self.entries))
            sound = sound and self._rising(ends, before)
            if not sound:
                break
            starts = document_starts(ends, before, self.manifest.sequence_length)
            self._check_pieces(starts, ends)
            self._check_ids(before, int(ends[-1]), starts, ends)
            before = int(ends[-1])
        nothing = np.empty(0, np.uint64)
        if not sound:
            self._check_ids(before, self.tokens, nothing, nothing)
            return self
        # Nothing follows the last document, except the padding of the last sequence in packed shards.
        last = np.asarray([self.tokens], np.uint64)
        self._check_ids(before, self.tokens, last if self.manifest.sequence_length else nothing, nothing)
        self._check_tail(before)
        return self

    def _report(self, file: str, what: str, example: str = "") -> None:
        # Each kind once: a damaged file would otherwise fill the screen.
        if (file, what) not in [(known.file, known.what) for known in self.problems]:
            self.problems.append(Problem(file, what, example))

    def _rising(self, ends: Ends, before: int) -> bool:
        previous = np.concatenate([np.asarray([before], np.uint64), ends[:-1]])
        wrong = np.flatnonzero(ends <= previous)
        if len(wrong):
            at = int(wrong[0])
            example = f"{int(ends[at]):,} comes after {int(previous[at]):,}"
            self._report(self.idx, "its ends are not increasing", example)
        elif int(ends[-1]) > self.tokens:
            self._report(self.idx, "its ends go beyond the shard", f"{int(ends[-1]):,} of {self.tokens:,} ids")
        else:
            return True
        return False

    def _check_pieces(self, starts: Ends, ends: Ends) -> None:
        length = self.manifest.sequence_length
        if not length:
            return
        size = np.uint64(length)
        wrong = np.flatnonzero(starts // size != (ends - np.uint64(1)) // size)
        if len(wrong):
            at = int(wrong[0])
            self._report(self.idx, f"a piece crosses a sequence of {length:,}", f"it ends at {int(ends[at]):,}")

    def _check_ids(self, begin: int, stop: int, starts: Ends, ends: Ends) -> None:
        """The ids from `begin` to `stop`, in which documents have these starts and ends."""
        lacking = np.zeros(len(ends), bool)
        for first in range(begin, stop, BLOCK_IDS):
            after = min(first + BLOCK_IDS, stop)
            ids = read_at(self.folder / self.bin, np.dtype(f"<u{self.manifest.id_bytes}"), first, after)
            if int(ids.max()) >= self.manifest.vocab_size:
                at = int(np.argmax(ids >= self.manifest.vocab_size))
                what = f"ids beyond the vocabulary of {self.manifest.vocab_size:,}"
                self._report(self.bin, what, f"{int(ids[at]):,} at position {first + at:,}")
            if self.manifest.end_id is not None and len(ends):
                low, high = np.searchsorted(ends, np.asarray([first, after], np.uint64), "right").tolist()
                last_ids = ids[(ends[low:high] - np.uint64(first + 1)).astype(np.int64)]
                lacking[low:high] = last_ids != self.manifest.end_id
            if self.manifest.sequence_length and len(starts):
                self._check_padding(ids, first, begin, starts, ends)
        self._count(starts, ends, lacking)

    def _check_padding(self, ids: Ids, first: int, begin: int, starts: Ends, ends: Ends) -> None:
        gap_starts = np.concatenate([np.asarray([begin], np.uint64), ends])[: len(starts)].astype(np.int64) - first
        gap_ends = starts.astype(np.int64) - first
        edges = np.zeros(len(ids) + 1, np.int8)
        inside = (gap_ends > gap_starts) & (gap_ends > 0) & (gap_starts < len(ids))
        np.add.at(edges, gap_starts[inside].clip(0), 1)
        np.add.at(edges, gap_ends[inside].clip(None, len(ids)), -1)
        padding: npt.NDArray[np.bool_] = np.cumsum(edges[:-1], dtype=np.int8) > 0
        self.padding += int(padding.sum())
        wrong = np.flatnonzero(padding & (ids != self.manifest.pad_id))
        if len(wrong):
            what = f"padding that is not the pad id {self.manifest.pad_id}"
            self._report(self.bin, what, f"at position {first + int(wrong[0]):,}")

    def _count(self, starts: Ends, ends: Ends, lacking: npt.NDArray[np.bool_]) -> None:
        if not len(ends):
            return
        sizes = (ends - starts).astype(np.int64)
        if self.manifest.end_id is not None:
            self.end_ids += int((~lacking).sum())
            counted = sizes - ~lacking
            wrong = np.flatnonzero(lacking)
            # A piece of a packed document may be the middle of it.
            if len(wrong) and self.ends_needed and not self.manifest.sequence_length:
                what = f"documents without the end id {self.manifest.end_id}"
                self._report(self.idx, what, f"one ends at {int(ends[wrong[0]]):,}")
        else:
            counted = sizes
        # A shard from elsewhere may have documents that are only the end id: they count as the shortest.
        # frexp gives the exponent exactly, where log2 of a large number could round up.
        exponents = np.frexp(counted.clip(1).astype(np.float64))[1] - 1
        for exponent, count in zip(*(part.tolist() for part in np.unique(exponents, return_counts=True))):
            self.lengths[exponent] += count

    def _check_tail(self, last_end: int) -> None:
        length = self.manifest.sequence_length
        if not length:
            if last_end != self.tokens:
                self._report(self.idx, f"the last document ends at {last_end:,}, but the shard has {self.tokens:,} ids")
            return
        if self.tokens % length:
            self._report(self.bin, f"its {self.tokens:,} ids are not a multiple of the sequence length {length:,}")
        if self.tokens - last_end >= length:
            self._report(self.idx, "a sequence with nothing but padding", f"the last piece ends at {last_end:,}")
