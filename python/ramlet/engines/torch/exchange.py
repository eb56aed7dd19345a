"""What ranks send each other if gradients or weights are divided among them: one unit at a time, beside the work.

    exchange.ready(3)            # the weights of layer 3 are here; those of the next one are on their way
    exchange.fetch(4)
    exchange.expect(3)           # room for its gradients
    exchange.send(3)             # which go to their owners, while an earlier layer is computed

A unit is the embedding, the head or a layer: a range of the flat matrices, with one owner or a few (division.py). Its
weights are sent by their owners (broadcast), its gradients summed at them (reduce). Both need no scratch memory, in
NCCL and in gloo, and go without a copy; gloo's all_gather and reduce_scatter took twice to four times as long, with a
second copy of everything.

Buffers are allocated once: two for layers, of which one is used while the other is sent or received, and one for the
embedding, or the head. Layer n is always in buffer n mod 2, so a weight's view of it never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ramlet.engines.torch.division import Owned, Range
from ramlet.engines.torch.ranks import Sent, TorchRanks
from ramlet.engines.torch.sizes import LAYER_BUFFERS, embedding_elements, hidden_start, layer_range
from ramlet.model.shape import Shape

EMBEDDING, HEAD = "embedding", "head"
Unit = int | str
"""A layer by its number, or one of the names above."""


@dataclass(frozen=True)
class Part:
    """What this rank's optimizer updates of one of its groups."""

    range: Range
    """Of the flat matrices."""
    whole: Range
    """Of the group."""
    weights: Tensor
    products: Tensor
    """The weights for matrix products, which may be the same tensor."""


@dataclass(frozen=True)
class Sharding:
    """What is divided, and among whom."""

    level: str
    """states, gradients or weights: each includes those before it."""
    owners: Sequence[Owned]
    """By rank."""
    ranks: TorchRanks

    @property
    def mine(self) -> Owned:
        return self.owners[self.ranks.rank]

    @property
    def divides_gradients(self) -> bool:
        return self.level in ("gradients", "weights")

    @property
    def divides_weights(self) -> bool:
        return self.level == "weights"

    def pieces(self, some: Range) -> list[tuple[int, Range]]:
        """The owners of a range of the flat matrices, with what each has of it, in order."""
        found = [(rank, some.within(each)) for rank, owned in enumerate(self.owners) for each in owned.values()]
        return sorted(((rank, each) for rank, each in found if each.size), key=lambda piece: piece[1])


@dataclass
class _Buffer:
    flat: Tensor
    holds: Unit | None = None
    moving: list[Sent] = field(default_factory=list)

    def wait(self) -> None:
        for sent in self.moving:
            sent.wait()
        self.moving.clear()


class _Buffers:
    def __init__(self, shape: Shape, sharding: Sharding, parts: Mapping[str, Part], made: Any) -> None:
        """`made(count)` allocates a buffer."""
        self._sharding, self._parts, self._ranks = sharding, list(parts.values()), sharding.ranks
        largest = embedding_elements(shape)
        start, end = layer_range(shape, 0)
        self._layers = [_Buffer(made(end - start)) for _ in range(min(LAYER_BUFFERS, shape.layers))]
        self._embedding = _Buffer(made(largest))
        self._ranges: dict[Unit, Range] = {n: Range(*layer_range(shape, n)) for n in range(shape.layers)}
        self._ranges[EMBEDDING] = Range(0, largest)
        if not shape.tied:
            self._ranges[HEAD] = Range(hidden_start(shape) - largest, hidden_start(shape))
        self._pieces = {unit: sharding.pieces(some) for unit, some in self._ranges.items()}

    def flat(self, unit: Unit) -> tuple[Tensor, int]:
        """The buffer of a unit, and where in the flat matrices it starts."""
        return self._buffer(unit).flat, self._ranges[unit].start

    def _buffer(self, unit: Unit) -> _Buffer:
        return self._layers[unit % len(self._layers)] if isinstance(unit, int) else self._embedding

    def _all(self) -> list[_Buffer]:
        return [*self._layers, self._embedding]

    def _places(self, unit: Unit, buffer: _Buffer) -> list[tuple[int, Range, Tensor]]:
        """The owners of a unit, what each owns, and where that is in the buffer."""
        start = self._ranges[unit].start
        return [(rank, some, buffer.flat[some.start - start : some.end - start]) for rank, some in self._pieces[unit]]

    def _own(self, some: Range, *, grad: bool = False) -> Tensor:
        """What this rank stores of a range that it owns."""
        part = next(part for part in self._parts if part.range.within(some).size)
        held = part.weights.grad if grad else part.weights
        assert held is not None
        return held[some.start - part.range.start : some.end - part.range.start]


class Gathered(_Buffers):
    """The weights of the units in use, for matrix products."""

    def fetch(self, unit: Unit) -> None:
        """Begins to receive a unit, unless it is here."""
        buffer = self._buffer(unit)
        if buffer.holds == unit:
            return
        buffer.wait()
        buffer.holds = unit
        for rank, some, place in self._places(unit, buffer):
            if rank == self._ranks.rank:
                place.copy_(self._own(some))
            buffer.moving.append(self._ranks.send_to_all(place, rank))

    def ready(self, unit: Unit) -> None:
        """Returns when the unit is here."""
        self.fetch(unit)
        self._buffer(unit).wait()

    def forget(self) -> None:
        """The weights have changed."""
        for buffer in self._all():
            buffer.wait()
            buffer.holds = None


class Reduced(_Buffers):
    """The gradients of the units in use."""

    def expect(self, unit: Unit) -> None:
        """Makes room for the gradients of a unit, all zero."""
        buffer = self._buffer(unit)
        self._settle(buffer)
        buffer.flat.zero_()

    def send(self, unit: Unit) -> None:
        """Begins to sum the gradients of a unit over the ranks, at its owners."""
        buffer = self._buffer(unit)
        buffer.holds = unit
        for rank, _, place in self._places(unit, buffer):
            buffer.moving.append(self._ranks.sum_at(place, rank))

    def settle(self) -> None:
        """Returns when the owners have everything that was sent."""
        for buffer in self._all():
            self._settle(buffer)

    def _settle(self, buffer: _Buffer) -> None:
        unit, buffer.holds = buffer.holds, None
        buffer.wait()
        if unit is None:
            return
        for rank, some, place in self._places(unit, buffer):
            if rank == self._ranks.rank:
                self._own(some, grad=True).add_(place)


class Exchange:
    """The order in which a forward and a backward pass need units."""

    def __init__(self, shape: Shape, reduced: Reduced | None, gathered: Gathered | None) -> None:
        self._layers, self._tied = shape.layers, shape.tied
        self._reduced, self._gathered = reduced, gathered
        self._head = EMBEDDING if shape.tied else HEAD

    def ready(self, unit: Unit) -> None:
        if self._gathered is not None:
            self._gathered.ready(unit)

    def ready_head(self) -> None:
        self.ready(self._head)

    def enter(self, layer: int) -> None:
        """Before the forward pass of a layer."""
        if self._gathered is not None:
            self._gathered.ready(layer)
            self._gathered.fetch(layer + 1 if layer + 1 < self._layers else self._head)

    def begin_head(self) -> None:
        """Before the backward pass of the head. That of a tied embedding is sent once in a step."""
        self.ready_head()
        if self._reduced is not None and not self._tied:
            self._reduced.expect(HEAD)

    def end_head(self) -> None:
        if self._reduced is not None and not self._tied:
            self._reduced.send(HEAD)
        self._enter_backward(self._layers - 1)

    def leave(self, layer: int) -> None:
        """After the backward pass of a layer."""
        if self._reduced is not None:
            self._reduced.send(layer)
        if layer:
            self._enter_backward(layer - 1)
        elif self._reduced is not None and not self._tied:
            self._reduced.expect(EMBEDDING)

    def _enter_backward(self, layer: int) -> None:
        if self._reduced is not None:
            self._reduced.expect(layer)
        if self._gathered is not None:
            self._gathered.ready(layer)
            if layer:
                self._gathered.fetch(layer - 1)

    def end_backward(self) -> None:
        if self._reduced is not None and not self._tied:
            self._reduced.send(EMBEDDING)

    def settle(self) -> None:
        """After the last micro-batch of a step: the owners have the sums of all gradients."""
        if self._reduced is None:
            return
        if self._tied:
            self._reduced.send(EMBEDDING)
        self._reduced.settle()
        if self._tied:
            self._reduced.expect(EMBEDDING)

    def forget(self) -> None:
        if self._gathered is not None:
            self._gathered.forget()
