"""Megatron-LM's indexed dataset: train.bin with the ids, train.idx; a sequence is a document.

The .idx, all little-endian: `MMIDIDX` and two zero bytes; u64 1; u8 dtype (8 is uint16, 4 int32); u64 sequences; u64
documents + 1; then int32 ids in each sequence, int64 byte in the .bin at which each begins, and int64 the first
sequence of each document and their number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ramlet.dataset.export.run import Export
from ramlet.dataset.reader import BLOCK_ENDS, Dataset

MAGIC = b"MMIDIDX\x00\x00"
DTYPES = {"uint16": ("<u2", 8), "uint32": ("<i4", 4)}


def write(job: Export) -> None:
    dtype, code = DTYPES[job.dataset.manifest.dtype]
    for split in job.splits:
        with job.open(f"{split}.bin") as file:
            job.copy_ids(split, file, dtype)
        count = sum(len(sizes) for sizes in _sizes(job.dataset, split))
        width = np.dtype(dtype).itemsize
        with job.open(f"{split}.idx") as file:
            file.write(MAGIC + struct.pack("<QBQQ", 1, code, count, count + 1))
            for sizes in _sizes(job.dataset, split):
                file.write(sizes.astype("<i4").data)
            start = 0
            for sizes in _sizes(job.dataset, split):
                ends = np.cumsum(sizes * width) + start
                file.write((ends - sizes * width).astype("<i8").data)
                start = int(ends[-1])
            for first in range(0, count + 1, BLOCK_ENDS):
                file.write(np.arange(first, min(first + BLOCK_ENDS, count + 1), dtype="<i8").data)


def _sizes(dataset: Dataset, split: str) -> Iterator[npt.NDArray[np.int64]]:
    """Ids in each document, or in each sequence of a packed dataset."""
    for shard in dataset.shards(split):
        if dataset.sequence_length:
            count = shard.tokens // dataset.sequence_length
            for first in range(0, count, BLOCK_ENDS):
                yield np.full(min(count - first, BLOCK_ENDS), dataset.sequence_length, np.int64)
            continue
        before = 0
        for ends in dataset.end_blocks(shard):
            positions = ends.astype(np.int64)
            yield positions - np.concatenate([np.asarray([before], np.int64), positions[:-1]])
            before = int(ends[-1])
