"""Chunks of ids -> blocks of sequences, each with the position from which it can be read again.

Example k of an epoch starts at id k * stride, as in `ramlet.Loader`; a block is the next `size` examples. In memory are
the block and the chunks at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ramlet.loading.text_tokens import Chunk, Ids


@dataclass(frozen=True, slots=True)
class Block:
    number: int
    """In its epoch."""

    cursor: str | None
    skip: int
    """Ids between the cursor and the start of the block."""

    ids: Ids
    count: int
    """Examples in it."""


@dataclass(frozen=True)
class Blocks:
    seq_len: int
    stride: int
    size: int
    max_examples: int | None

    def cut(self, chunks: Iterator[Chunk], number: int, skip: int) -> Iterator[Block]:
        """The blocks of an epoch, starting with this one; the chunks begin at its cursor."""
        buffer = _Buffer(chunks)
        buffer.drop(skip)
        while (most := self._most(number)) > 0:
            buffer.fill(self._ids_in(most))
            count = min(most, (buffer.count - 1 - self.seq_len) // self.stride + 1)
            if count < 1:
                return
            cursor, before = buffer.start()
            yield Block(number, cursor, before, buffer.first(self._ids_in(count)), count)
            buffer.drop(count * self.stride)
            number += 1

    def count(self, ids: int) -> int:
        """The number of examples in an epoch of this many ids."""
        count = max(0, (ids - 1 - self.seq_len) // self.stride + 1)
        return count if self.max_examples is None else min(count, self.max_examples)

    def ids_wanted(self) -> int | None:
        """The most ids that an epoch uses; None: all."""
        return None if self.max_examples is None else self._ids_in(self.max_examples)

    def _ids_in(self, examples: int) -> int:
        return (examples - 1) * self.stride + self.seq_len + 1

    def _most(self, number: int) -> int:
        left = self.size if self.max_examples is None else self.max_examples - number * self.size
        return min(self.size, left)

    def row(self, block: Block, example: int) -> Ids:
        """The ids of an example, and the next id."""
        return block.ids[example * self.stride : example * self.stride + self.seq_len + 1]


class _Buffer:
    """Ids that were read but not used yet."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._waiting: deque[Chunk] = deque()
        self._used = 0
        """Ids of the first chunk."""
        self.count = 0

    def fill(self, count: int) -> None:
        """Reads until there are this many ids, or the chunks end."""
        while self.count < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._waiting.append(chunk)
            self.count += len(chunk.ids)

    def start(self) -> tuple[str | None, int]:
        """The last cursor before the first id, and the number of ids in between."""
        chunk = self._waiting[0]
        return chunk.cursor, chunk.before + self._used

    def first(self, count: int) -> Ids:
        """A copy of the first ids."""
        parts, left, used = [], count, self._used
        for chunk in self._waiting:
            parts.append(chunk.ids[used : used + left])
            left -= len(parts[-1])
            used = 0
            if not left:
                break
        return np.concatenate(parts)

    def drop(self, count: int) -> None:
        """Drops the first ids, or as many as there are."""
        while count:
            self.fill(1)
            if not self._waiting:
                return
            chunk = self._waiting[0]
            step = min(count, len(chunk.ids) - self._used)
            self._used += step
            self.count -= step
            count -= step
            if self._used == len(chunk.ids):
                self._waiting.popleft()
                self._used = 0
