"""The texts of a dataset's documents, in pieces: a document may be far larger than a block of ids.

for text, ids, ends in pieces(dataset, "train"):      bytes, the ids they are of, whether their document ends
    ...
longest_text(dataset)                                 bytes of memory for the largest one as a whole
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ramlet.dataset.reader import BLOCK_IDS, Dataset, Ends

SLICE = 1 << 16
"""Ids that are decoded at once."""
TEXT_COPIES = 6
"""Of the bytes of a text: as they are, as str (up to four bytes for a character), and as the native core has it."""
HF_ID_BYTES = 200
"""HF tokenizers decode a document as a whole, with objects for each id."""


def pieces(dataset: Dataset, split: str) -> Iterator[tuple[bytes, int, bool]]:
    """Without the end ids, which are counted."""
    tokenizer = dataset.tokenizer
    blocks = dataset.document_blocks(split) if tokenizer.kind == "hf" else dataset.document_parts(split)
    for ids, starts, ends in blocks:
        ended = len(ends) > 0
        for begin, end in zip(starts.tolist(), ends.tolist()) if _are_whole(starts, ends) else [(0, len(ids))]:
            text_end = end - int(ended and end > begin and ids[end - 1] == dataset.end_id)
            step = max(1, end - begin) if tokenizer.kind == "hf" else SLICE
            for at in range(begin, max(text_end, begin + 1), step):
                until = min(at + step, text_end)
                last = ended and until == text_end
                yield tokenizer.decode_bytes(ids[at:until]), until - at + (end - text_end) * last, last


def longest_text(dataset: Dataset) -> int:
    """Memory that the text of the largest document takes as a whole; 0 if its ids fit in a block."""
    longest = max(dataset.longest(split) for split in dataset.splits)
    if longest <= BLOCK_IDS:
        return 0
    if dataset.tokenizer.kind == "hf":
        return longest * HF_ID_BYTES
    sizes = np.zeros(dataset.vocab_size, np.int64)
    for number, token in dataset.tokenizer.vocabulary.items():
        sizes[number] = len(token)
    largest = size = 0
    for split in dataset.splits:
        for ids, starts, ends in dataset.document_parts(split):
            if not _are_whole(starts, ends):
                size = (0 if len(starts) else size) + int(sizes[ids].sum())
                largest = max(largest, size)
    return largest * TEXT_COPIES


def _are_whole(starts: Ends, ends: Ends) -> bool:
    """Whether a block has whole documents, not a part of one."""
    return len(starts) == len(ends) > 0
