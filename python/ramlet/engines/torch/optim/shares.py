"""How ranks divide the matrices inside layers, so that each orthogonalizes about as much as the others.

A share is a range of matrices in memory order: one piece of the flat weights, which is sent without being copied.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

from ramlet.engines.torch.division import nearest
from ramlet.engines.torch.sizes import Stack, flat_elements, hidden_start, stacks
from ramlet.model.shape import Shape


class Share(NamedTuple):
    start: int
    end: int
    """Of the elements, from `hidden_start` on."""
    layers: list[range]
    """For each stack, those whose matrix is in the share."""


def shares(shape: Shape, world: int) -> list[Share]:
    """One per rank; those of too many ranks are empty."""
    found = stacks(shape)
    count = len(found)
    done = [0, *accumulate([_cost(stack) for stack in found] * shape.layers)]
    starts = [stack.start + layer * stack.stride for layer in range(shape.layers) for stack in found]
    starts.append(flat_elements(shape)[0] - hidden_start(shape))
    ends = [nearest(done, done[-1] * rank / world) for rank in range(world + 1)]
    return [
        Share(
            starts[first],
            starts[end],
            [range(-((number - first) // count), -((number - end) // count)) for number in range(count)],
        )
        for first, end in pairwise(ends)
    ]


def share_between(shape: Shape, start: int, end: int) -> Share:
    """The share that is this range of the elements, if it has whole matrices."""
    layers = []
    for stack in stacks(shape):
        inside = [start <= stack.start + layer * stack.stride < end for layer in range(shape.layers)]
        first = inside.index(True) if True in inside else 0
        layers.append(range(first, first + sum(inside)))
    return Share(start, end, layers)


def _cost(stack: Stack) -> int:
    """Multiplications of a step of polar.py: x x^T, its square, and their product with x."""
    shorter, longer = sorted((stack.rows, stack.columns))
    return shorter * shorter * (2 * longer + shorter)
