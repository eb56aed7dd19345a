"""How long documents are, in tokens: counted from the .idx files, a block at a time.

    lengths = count_lengths(dataset)
    lengths.counts["train"][5]      documents of 8 up to 11 tokens: two bins for each doubling

Edges are 1, 2, 3, 4, 6, 8, 12, 16, ...: powers of two and the points half-way between them. The end-of-document token
counts. In a packed dataset these are the pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramlet.dataset.manifest import SPLITS
from ramlet.errors import DatasetError

if TYPE_CHECKING:
    from ramlet.dataset.reader import Dataset

EDGES = sorted({1, *(edge for power in range(1, 62) for edge in (1 << power, 3 << (power - 1)))})
"""A bin goes from one edge to just below the next."""


@dataclass(frozen=True)
class Lengths:
    counts: dict[str, list[int]]
    """Documents in each bin of EDGES, by split."""

    @property
    def documents(self) -> int:
        return sum(map(sum, self.counts.values()))

    def quantile(self, fraction: float) -> int:
        """The edge below which about this fraction of the documents lie."""
        wanted, seen = fraction * self.documents, 0
        totals = [sum(of_bin) for of_bin in zip(*self.counts.values())]
        for at, count in enumerate(totals):
            seen += count
            if seen >= wanted:
                return EDGES[min(at + 1, len(EDGES) - 1)]
        return EDGES[-1]


def count_lengths(dataset: Dataset, progress: Callable[[int, int], None] | None = None) -> Lengths:
    """Reads every .idx file once; `progress` gets the number of shards done and in total."""
    import numpy as np

    manifest = dataset.manifest
    edges = np.asarray(EDGES, np.uint64)
    total, done = len(manifest.shards), 0
    counts = {}
    for split in SPLITS:
        found = np.zeros(len(EDGES) + 1, np.int64)
        for shard in manifest.splits[split].shards:
            before = 0
            for ends in dataset.end_blocks(shard):
                starts = dataset.starts(ends, before)
                if (starts > ends).any():
                    raise DatasetError(f"{dataset.path / shard.index} is damaged: its offsets are not ascending")
                found += np.bincount(np.searchsorted(edges, ends - starts, "right"), minlength=len(found))
                before = int(ends[-1])
            done += 1
            if progress is not None:
                progress(done, total)
        counts[split] = found[1:].tolist()
    return Lengths(counts)
