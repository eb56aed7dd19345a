"""How the ranks of a sharded run divide the matrices: which of them owns what. Imports no torch.

    owners = owners_of(shape, whole_matrices=False, world=4)     # by rank, by the name of the optimizer's group
    owners[1]["matrices"]                                        # Range(start=2_097_152, end=4_194_304)
    held_by(shape, owners[1])                                    # elements, for the memory prediction

An owner has a range of the flat matrices: its states, then its gradients, then its weights are on no other rank
(docs/design/sharding.md). A range starts at a multiple of 256 elements, the block of the 8-bit states, so that a block
is never divided. An optimizer that needs whole matrices, like Muon, gets them: its ranges end between two of them, and
the embeddings, which AdamW updates, are divided separately. The gains of norms are on all ranks: they are small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ramlet.engines.torch.sizes import ALIGNMENT, flat_elements, hidden_start, layer_starts
from ramlet.model.shape import Shape


class Range(NamedTuple):
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def within(self, other: Range) -> Range:
        """What both have in common; empty if nothing."""
        start = max(self.start, other.start)
        return Range(start, max(start, min(self.end, other.end)))


Owned = Mapping[str, Range]
"""What a rank owns, by the name of the optimizer's group."""


class Held(NamedTuple):
    """Elements of the groups that are on a rank: all of them, or what it owns."""

    shape: Shape
    matrices: int
    embeddings: int
    hidden: int
    """The matrices inside layers."""
    gains: int


def groups_of(shape: Shape, whole_matrices: bool) -> dict[str, Range]:
    """All matrices, as an optimizer groups them."""
    total, start = flat_elements(shape)[0], hidden_start(shape)
    if not whole_matrices:
        return {"matrices": Range(0, total)}
    return {"embeddings": Range(0, start), "hidden": Range(start, total)}


@lru_cache(maxsize=8)
def owners_of(shape: Shape, *, whole_matrices: bool, world: int) -> tuple[Owned, ...]:
    """What each rank owns; a range may be empty if there are too many of them."""
    divided = {
        name: _matrices(shape, whole, world) if name == "hidden" else _blocks(whole, world)
        for name, whole in groups_of(shape, whole_matrices).items()
    }
    return tuple({name: ranges[rank] for name, ranges in divided.items()} for rank in range(world))


def can_divide(shape: Shape, *, whole_matrices: bool, world: int) -> bool:
    """Whether each rank gets something of each group."""
    owners = owners_of(shape, whole_matrices=whole_matrices, world=world)
    return all(each.size for owned in owners for each in owned.values())


def most_ranks(shape: Shape, *, whole_matrices: bool, world: int) -> int:
    """The largest number of ranks below `world` that can divide it."""
    groups = groups_of(shape, whole_matrices)
    pieces = [
        len(layer_starts(shape)) if name == "hidden" else -(-each.size // ALIGNMENT) for name, each in groups.items()
    ]
    most = min(world, *pieces)
    return next(n for n in range(most, 0, -1) if can_divide(shape, whole_matrices=whole_matrices, world=n))


def held_by(shape: Shape, owned: Owned | None = None) -> Held:
    """On the rank that owns this; without it, on one that has everything."""
    matrices, gains = flat_elements(shape)
    if owned is None:
        start = hidden_start(shape)
        return Held(shape, matrices, start, matrices - start, gains)
    counts = {name: each.size for name, each in owned.items()}
    total = sum(counts.values())
    return Held(shape, total, counts.get("embeddings", 0), counts.get("hidden", 0), gains)


def _blocks(whole: Range, world: int) -> list[Range]:
    blocks = -(-whole.size // ALIGNMENT)
    ends = [min(whole.end, whole.start + blocks * rank // world * ALIGNMENT) for rank in range(world + 1)]
    return [Range(start, end) for start, end in pairwise(ends)]


def _matrices(shape: Shape, whole: Range, world: int) -> list[Range]:
    """Ends at the matrix that starts nearest to an equal share."""
    starts = [*layer_starts(shape), whole.end]
    ends = [starts[nearest(starts, whole.start + whole.size * rank / world)] for rank in range(world + 1)]
    return [Range(start, end) for start, end in pairwise(ends)]


def nearest(increasing: list[int], wanted: float) -> int:
    """The index of the number that is closest."""
    above = min(bisect_left(increasing, wanted), len(increasing) - 1)
    return above - 1 if above and wanted - increasing[above - 1] < increasing[above] - wanted else above
