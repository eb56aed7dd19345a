"""The order of the sums of a step on a CPU: it depends on the sequence length alone.

Floating-point sums depend on their order, so a budget that divides a step differently would change the last bits of
its result. Here it does not: sums over tokens are taken one *unit* of sequences at a time, and a micro-batch always
has whole units; the rows of a matrix product do not depend on how many there are. So the result is the same for every
micro-batch that a plan may choose, and for any number of threads.

One sum needs more: a tied embedding gets gradients from the head, at the start of the backward pass, and from the input
tokens, at its end. Within a *group* of units all gradients of the head come first, so smaller micro-batches hold the
others back until the group is complete (`HeldGrads`): at most a group's rows of the residual stream.

On a GPU the attention sums with atomics, so there is no such order: a unit is the whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """Of an engine, in tokens."""

    unit: int
    """Smaller units cost time, because each is a pass over the gradients (2% of a step with 256 instead of 2,048);
    larger ones cost memory, because a micro-batch has at least one."""
    group: int
    """Beyond this many tokens a micro-batch is not faster on a CPU."""


TORCH_ORDER = Order(unit=256, group=2048)

LEAST_CHUNK, MOST_CHUNK = 64, 256


def unit_rows(seq_len: int, order: Order = TORCH_ORDER) -> int:
    """Sequences whose gradients are summed at once."""
    return max(1, order.unit // seq_len)


def group_rows(seq_len: int, order: Order = TORCH_ORDER) -> int:
    """Sequences in a group, and in the largest micro-batch: a unit times a power of two."""
    rows = unit_rows(seq_len, order)
    while 2 * rows * seq_len <= order.group:
        rows *= 2
    return rows


def head_chunk(seq_len: int, width: int) -> int:
    """Tokens whose logits exist at once: never more bytes than the embedding itself."""
    unit = unit_rows(seq_len) * seq_len
    return even_part(unit, min(MOST_CHUNK, max(LEAST_CHUNK, width)))


def even_parts(count: int, unit: int, most: int) -> Iterator[slice]:
    """Splits tokens into units (0: a single one), and these into parts of about equal size, at most `most` each."""
    unit = unit or max(1, count)
    for first in range(0, count, unit):
        end = min(count, first + unit)
        size = even_part(end - first, most)
        for start in range(first, end, size):
            yield slice(start, min(end, start + size))


def even_part(count: int, most: int) -> int:
    """The size of parts of about equal size, at most `most` each."""
    return -(-count // -(-count // most))
