"""Chunks of ids -> blocks of sequences, each with the place that it can be made again from.

Example k of an epoch is the ids from k * stride on, as in `ramlet.Loader`; a block is the next `size` examples. Held
are the block and the chunks that it ends in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ramlet.loading.text_tokens import Chunk, Ids

__all__ = ["Block", "Blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    number: int
    """In its epoch."""

    cursor: str | None
    skip: int
    """It begins so many ids behind the cursor."""

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
        """The blocks of an epoch from this one on; the chunks begin at its cursor."""
        carried = _Carried(chunks)
        carried.drop(skip)
        while (most := self._most(number)) > 0:
            carried.fill((most - 1) * self.stride + self.seq_len + 1)
            count = min(most, (carried.count - 1 - self.seq_len) // self.stride + 1)
            if count < 1:
                return
            cursor, behind = carried.start()
            ids = carried.first((count - 1) * self.stride + self.seq_len + 1)
            yield Block(number, cursor, behind, ids, count)
            carried.drop(count * self.stride)
            number += 1

    def count(self, ids: int) -> int:
        """The examples of an epoch of so many ids."""
        count = max(0, (ids - 1 - self.seq_len) // self.stride + 1)
        return count if self.max_examples is None else min(count, self.max_examples)

    def ids_wanted(self) -> int | None:
        """As many as an epoch uses at most; None: all there are."""
        return None if self.max_examples is None else (self.max_examples - 1) * self.stride + self.seq_len + 1

    def _most(self, number: int) -> int:
        left = self.size if self.max_examples is None else self.max_examples - number * self.size
        return min(self.size, left)

    def row(self, block: Block, example: int) -> Ids:
        """The ids of an example, and the one behind them."""
        return block.ids[example * self.stride : example * self.stride + self.seq_len + 1]


class _Carried:
    """Ids that were read and are not used up."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: deque[Chunk] = deque()
        self._used = 0
        """Of the first chunk."""
        self.count = 0

    def fill(self, count: int) -> None:
        """Reads until there are so many, if there are."""
        while self.count < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._held.append(chunk)
            self.count += len(chunk.ids)

    def start(self) -> tuple[str | None, int]:
        """The cursor before the first id, and how many ids lie between."""
        chunk = self._held[0]
        return chunk.cursor, chunk.before + self._used

    def first(self, count: int) -> Ids:
        """A copy of the first ids."""
        parts, left, used = [], count, self._used
        for chunk in self._held:
            parts.append(chunk.ids[used : used + left])
            left -= len(parts[-1])
            used = 0
            if not left:
                break
        return np.concatenate(parts)

    def drop(self, count: int) -> None:
        """Lets go of the first ids, as many as there are."""
        while count and (self._held or self._more()):
            chunk = self._held[0]
            step = min(count, len(chunk.ids) - self._used)
            self._used += step
            self.count -= step
            count -= step
            if self._used == len(chunk.ids):
                self._held.popleft()
                self._used = 0

    def _more(self) -> bool:
        self.fill(self.count + 1)
        return bool(self._held)
