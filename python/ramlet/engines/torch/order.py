"""The order in which a step's sums are taken on a CPU: it follows from the length of a sequence, and from nothing else.

Sums of floating-point numbers depend on their order, so a budget that divides a step differently would change the last
bits of its result. Here it does not: whatever is summed over tokens is summed a *unit* of sequences at a time, and a
micro-batch is always whole units; the rows of a product do not depend on how many there are. So a result is the same
for every micro-batch that the plan may choose, and for any number of threads.

One sum needs more: a tied embedding learns from the head, on the way out, and from the tokens that came in, at the end
of the way back. Within a *group* of units all of the head comes first, so smaller micro-batches hold the rest back
until the group is complete (`HeldGrads`): at most GROUP_TOKENS rows of the stream.

On a GPU the attention sums by atomics, and nothing of this is of use: there a unit is the whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["GROUP_TOKENS", "even_parts", "group_rows", "head_chunk", "unit_rows"]

UNIT_TOKENS = 256
"""Smaller units cost time, for each is a pass over the gradients (2% of a step with 256 instead of 2,048); larger ones
memory, for a micro-batch has at least one."""

GROUP_TOKENS = 2048
"""Tokens of a micro-batch from which on more of them are not faster on a CPU."""

LEAST_CHUNK, MOST_CHUNK = 64, 256


def unit_rows(seq_len: int) -> int:
    """Sequences whose gradients are summed at once."""
    return max(1, UNIT_TOKENS // seq_len)


def group_rows(seq_len: int) -> int:
    """Sequences whose head comes before all of their embedding: the largest micro-batch, units times a power of two."""
    rows = unit_rows(seq_len)
    while 2 * rows * seq_len <= GROUP_TOKENS:
        rows *= 2
    return rows


def head_chunk(seq_len: int, width: int) -> int:
    """Tokens whose logits exist at once: never more bytes than the embedding has itself."""
    unit = unit_rows(seq_len) * seq_len
    return _part(unit, min(MOST_CHUNK, max(LEAST_CHUNK, width)))


def even_parts(count: int, unit: int, most: int) -> Iterator[slice]:
    """Tokens cut into units (0: all are one), and these into parts of about the same size, none larger than `most`."""
    unit = unit or max(1, count)
    for first in range(0, count, unit):
        end = min(count, first + unit)
        size = _part(end - first, most)
        for start in range(first, end, size):
            yield slice(start, min(end, start + size))


def _part(count: int, most: int) -> int:
    return -(-count // -(-count // most))
