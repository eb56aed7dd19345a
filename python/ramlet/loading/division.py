"""Divides samples into global batches, and global batches into the micro-batches of each rank.

Samples are numbered through all epochs. A global batch is the next `batch_size` of them; rank r takes every `world`-th
sample starting with the r-th, in pieces of at most `micro_batch`:

    batch_size=6, world=2, micro_batch=2      rank 0: 0 2 | 4      rank 1: 1 3 | 5

So the global batches, and what is learned from them, do not depend on the number of ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ramlet.errors import SettingsError, option

MOST = 1 << 40
"""The largest number of sequences or tokens; the product of larger ones would overflow 64 bits."""
LAST_SEED = (1 << 64) - 1


def check_counts(**counts: int | None) -> None:
    """Checks that these are whole numbers from 1; None means not given."""
    for name, value in counts.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingsError(f"{option(name)} must be a whole number, not {value!r}")
        if not 1 <= value <= MOST:
            raise SettingsError(
                f"{option(name)} must be at least 1" + f" and at most {MOST:,}" * (value > MOST) + f", not {value}"
            )


def whole_number(name: str, value: Any) -> int:
    """As an ordinary integer, also of NumPy's; an error for anything else."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    raise SettingsError(f"{option(name)} must be a whole number, not {value!r}")


def checked_seed(seed: Any) -> int:
    number = whole_number("seed", seed)
    if not 0 <= number <= LAST_SEED:
        raise SettingsError(f"{option('seed')} must be from 0 to {LAST_SEED}, not {number}")
    return number


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples first, first + world, ... of one global batch."""

    first: int
    count: int
    world: int
    first_of_step: bool
    last_of_step: bool
    step_sequences: int
    samples_done: int
    number: int
    """Among those of this rank in the global batch."""

    @property
    def samples_before(self) -> int:
        """At which the global batch begins."""
        return self.samples_done - self.step_sequences

    @property
    def samples(self) -> range:
        return range(self.first, self.first + self.count * self.world, self.world)


@dataclass(frozen=True, kw_only=True)
class Division:
    batch_size: int
    """Sequences in a global batch, over all ranks."""

    rank: int = 0
    world: int = 1
    """This process, and the number of processes that share the work."""

    micro_batch: int | None = None
    """The most sequences at a time; None: all that the rank has of a global batch."""

    def __post_init__(self) -> None:
        check_counts(batch_size=self.batch_size, world=self.world, micro_batch=self.micro_batch)
        if not 0 <= whole_number("rank", self.rank) < self.world:
            raise SettingsError(f"rank must be from 0 to {self.world - 1} with world={self.world}, not {self.rank}")

    @property
    def rows(self) -> int:
        """The largest number of sequences in a piece."""
        mine = -(-self.batch_size // self.world)
        return min(mine, self.micro_batch or mine)

    def pieces(self, first: int, end: int | None) -> Iterator[Piece]:
        """Starting with sample `first`, which begins a global batch, up to `end`, if given."""
        while end is None or first < end:
            size = self.batch_size if end is None else min(self.batch_size, end - first)
            yield from self.step(first, size)
            first += size

    def step(self, first: int, size: int) -> Iterator[Piece]:
        """The pieces of the global batch of `size` samples that starts with `first`.

        A rank without samples in a short last batch gets an empty piece, because it has to take part in the step.
        """
        mine = self._mine(size)
        for done in range(0, mine, self.rows) if mine else [0]:
            yield Piece(
                first=first + self.rank + done * self.world,
                count=min(self.rows, mine - done),
                world=self.world,
                first_of_step=done == 0,
                last_of_step=done + self.rows >= mine,
                step_sequences=size,
                samples_done=first + size,
                number=done // self.rows,
            )

    def count_rows(self, samples: int) -> int:
        """How many of this many samples in a row, the first of which begins a global batch, are of this rank."""
        whole, rest = divmod(samples, self.batch_size)
        return whole * self._mine(self.batch_size) + self._mine(rest)

    def count_pieces(self, samples: int) -> int:
        """How many pieces they make."""
        whole, rest = divmod(samples, self.batch_size)
        counts = [max(1, -(-self._mine(size) // self.rows)) if size else 0 for size in (self.batch_size, rest)]
        return whole * counts[0] + counts[1]

    def _mine(self, size: int) -> int:
        return len(range(self.rank, size, self.world))
