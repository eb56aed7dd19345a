"""llm.c: NAME_train_000000.bin ..., each 256 int32 (20240520, 1, ids in the file, zeros) and then uint16 ids.

The end id comes before each document; a file has 100 million ids, even if that splits a document.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from ramlet.dataset.export.run import Export
from ramlet.dataset.reader import Dataset, Ids
from ramlet.errors import DatasetError, option

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256
FILE_TOKENS = 100_000_000


def write(job: Export) -> None:
    dataset = job.dataset
    if dataset.manifest.dtype != "uint16":
        raise DatasetError(
            f"llm.c reads uint16 ids, but the {dataset.vocab_size:,} tokens of {dataset.path} need uint32"
        )
    if dataset.end_id is None:
        raise DatasetError(f"llm.c separates documents by an end id, but {dataset.path} has none")
    if dataset.manifest.packed is not None:
        raise DatasetError(
            f"{dataset.path} is packed, but llm.c packs by itself: export a dataset prepared without {option('pack')}"
        )
    for split in job.splits:
        blocks = job.counted(_end_id_first(dataset, split, dataset.end_id))
        block = next(blocks, None)
        number = 0
        while block is not None:
            with job.open(f"{job.name}_{split}_{number:06}.bin") as file:
                file.write(bytes(4 * HEADER_INTS))
                count = 0
                while block is not None and count < FILE_TOKENS:
                    part, rest = np.split(block, [FILE_TOKENS - count])
                    file.write(part.data)
                    count += len(part)
                    block = rest if len(rest) else next(blocks, None)
                file.seek(0)
                file.write(struct.pack("<3i", MAGIC, VERSION, count))
            number += 1


def _end_id_first(dataset: Dataset, split: str, end_id: int) -> Iterator[Ids]:
    """The documents with the end id before them instead of after them."""
    for ids, starts, ends in dataset.document_parts(split):
        starts, ends = starts.astype(np.int64), ends.astype(np.int64)
        # Not every document has one: the last of an adopted shard may lack it.
        kept = np.ones(len(ids), bool)
        kept[ends[ids[ends - 1] == end_id] - 1] = False
        yield np.insert(ids, starts, end_id)[np.insert(kept, starts, True)]
