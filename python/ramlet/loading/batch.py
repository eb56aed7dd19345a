"""What a loader hands out.

    batch.input_ids, batch["labels"]      (rows, seq_len), int64
    model(**batch)

`labels` are shifted already: labels[r, i] is the id that follows input_ids[r, i], or -100 where no loss is to be taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramlet.loading.division import Piece

__all__ = ["IGNORED", "Batch", "make_batch", "row_arrays"]

IGNORED = -100
"""The label that losses leave out, PyTorch's own default."""

_ARRAYS = ("input_ids", "labels", "position_ids", "document_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The sequences of a global batch that one rank takes in one go."""

    input_ids: Any
    """NumPy arrays, or tensors; this and those below are of the same shape, and int64."""

    labels: Any

    position_ids: Any
    """With a document mask, else None: places from the start of the document."""

    document_ids: Any
    """With a document mask, else None: 0, 1, 2, ... for the documents of a row."""

    first_of_step: bool
    last_of_step: bool
    """Of the micro-batches that this rank makes of one global batch."""

    step_sequences: int
    """In the global batch, over all ranks: what a sum of losses is divided by."""

    samples_done: int
    """Samples, counted from the beginning, behind this global batch."""

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name) if name in _ARRAYS else None
        if value is None:
            raise KeyError(name)
        return value

    def keys(self) -> list[str]:
        return [name for name in _ARRAYS if getattr(self, name) is not None]


def make_batch(arrays: Any, piece: Piece, as_torch: bool) -> Batch:
    """From what the native core returns: (inputs, labels, (positions, documents) or None)."""
    inputs, labels, documents = arrays
    positions, numbers = documents or (None, None)
    if as_torch:
        import torch

        # The same memory, as a tensor.
        inputs, labels, positions, numbers = (
            None if array is None else torch.from_numpy(array) for array in (inputs, labels, positions, numbers)
        )
    return Batch(
        input_ids=inputs,
        labels=labels,
        position_ids=positions,
        document_ids=numbers,
        first_of_step=piece.first_of_step,
        last_of_step=piece.last_of_step,
        step_sequences=piece.step_sequences,
        samples_done=piece.samples_done,
    )


def row_arrays(rows: list[Any], seq_len: int, end_id: int | None) -> Any:
    """Sequences of seq_len + 1 ids -> what `make_batch` takes; with an end id under a document mask."""
    import numpy as np

    ids = np.empty((len(rows), seq_len + 1), np.int64)
    for number, row in enumerate(rows):
        ids[number] = row
    inputs, labels = ids[:, :-1].copy(), ids[:, 1:].copy()
    if end_id is None:
        return inputs, labels, None
    ends = inputs == end_id
    labels[ends] = IGNORED
    documents = ends.cumsum(axis=1) - ends
    # Each place less the last one at which a document began.
    places = np.arange(seq_len)
    begins = np.zeros_like(inputs)
    begins[:, 1:] = np.where(ends[:, :-1], places[1:], 0)
    positions = places - np.maximum.accumulate(begins, axis=1)
    return inputs, labels, (positions, documents)
