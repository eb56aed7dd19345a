"""How samples become global batches, and these the micro-batches of each rank.

Samples are numbered for ever. A global batch is the next `batch_size` of them; rank r takes every `world`-th from the
r-th on, in pieces of at most `micro_batch`:

    batch_size=6, world=2, micro_batch=2      rank 0: 0 2 | 4      rank 1: 1 3 | 5

So the global batches, and what is learned from them, do not depend on how many share the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ramlet.errors import SettingsError

__all__ = ["Division", "Piece"]


MOST = 1 << 40
"""No count of sequences or tokens is larger; beyond it numbers of 64 bits run over when they are multiplied."""


def check_counts(**counts: int | None) -> None:
    """Refuses what is no whole number from 1 on; None is one that was not given."""
    for name, value in counts.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingsError(f"{name} is {value!r}: it must be a whole number")
        if not 1 <= value <= MOST:
            raise SettingsError(f"{name} is {value}: it must be at least 1" + f" and at most {MOST:,}" * (value > MOST))


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples first, first + world, ... of one global batch."""

    first: int
    count: int
    first_of_step: bool
    last_of_step: bool
    step_sequences: int
    samples_done: int

    @classmethod
    def alone(cls, sample: int) -> Piece:
        """A batch of one."""
        return cls(sample, 1, True, True, 1, sample + 1)


@dataclass(frozen=True, kw_only=True)
class Division:
    batch_size: int
    """Sequences in a global batch, over all ranks."""

    rank: int = 0
    world: int = 1
    """This one of so many that share the work."""

    micro_batch: int | None = None
    """At most so many sequences at a time; None: all that the rank has of a global batch."""

    def __post_init__(self) -> None:
        check_counts(batch_size=self.batch_size, world=self.world, micro_batch=self.micro_batch)
        if not 0 <= self.rank < self.world:
            raise SettingsError(f"rank is {self.rank}, but of {self.world} ranks the last is {self.world - 1}")

    @property
    def rows(self) -> int:
        """The most sequences in a piece."""
        mine = -(-self.batch_size // self.world)
        return min(mine, self.micro_batch or mine)

    def pieces(self, first: int, end: int | None) -> Iterator[Piece]:
        """From sample `first` on, which begins a global batch, up to `end`, if there is one."""
        while end is None or first < end:
            size = self.batch_size if end is None else min(self.batch_size, end - first)
            yield from self.step(first, size)
            first += size

    def step(self, first: int, size: int) -> Iterator[Piece]:
        """Of the global batch of `size` samples from `first` on.

        A rank that a short last batch has nothing for gets an empty piece: it has to take part in the step.
        """
        mine = len(range(self.rank, size, self.world))
        for done in range(0, mine, self.rows) if mine else [0]:
            yield Piece(
                first=first + self.rank + done * self.world,
                count=min(self.rows, mine - done),
                first_of_step=done == 0,
                last_of_step=done + self.rows >= mine,
                step_sequences=size,
                samples_done=first + size,
            )
