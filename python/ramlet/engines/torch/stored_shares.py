"""Tensors whose parts are on several ranks as `Stored` ones: written by the first rank, read by each for itself.

To write one, all ranks walk through it together (`tensor_file.write_tensors` and `send_tensors`): its owners send it to
the first rank in pieces of a megabyte. To read one, a rank takes its own parts from the file and skips the others. So
no rank ever has more of it than it owns, and the file is that of a single process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ramlet.engines.torch.division import Range
from ramlet.engines.torch.exchange import Sharding
from ramlet.engines.torch.optim import ON_ALL_RANKS
from ramlet.engines.torch.ranks import TorchRanks
from ramlet.engines.torch.sizes import BLOCK
from ramlet.engines.torch.stored import NAMES, TYPES, memory_of, stored
from ramlet.engines.torch.weights import Weights
from ramlet.model.tensor_file import Stored

SENT = 1 << 20
"""Bytes sent at once: training has no memory set aside for it."""

Owner = tuple[int, int, Tensor | None]
"""A rank, the number of elements that it has, and these themselves if it is this one."""


def divided_weight(weights: Weights, some: Range, shape: tuple[int, ...]) -> Stored:
    """A range of the flat matrices."""
    assert weights.sharding is not None
    ranks = weights.sharding.ranks
    owners: list[Owner] = []
    for rank, piece in weights.sharding.pieces(some):
        own = None
        if rank == ranks.rank:
            part = next(part for part in weights.parts.values() if part.range.within(piece).size)
            own = part.weights[piece.start - part.range.start : piece.end - part.range.start]
        owners.append((rank, piece.size, own))
    return _DividedTensor(owners, shape, weights.matrices.dtype, ranks)


def stored_states(tensors: Mapping[str, Tensor], sharding: Sharding) -> dict[str, Stored]:
    """The states of an optimizer by name, `group.state`, each divided like the group's weights."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        group, state = name.split(".", 1)
        if group not in sharding.mine or state in ON_ALL_RANKS:
            found |= stored({name: tensor})
            continue
        # An element of the state for each element, or for each block of them.
        each = 1 if tensor.numel() == sharding.mine[group].size else BLOCK
        counts = [-(-owned[group].size // each) for owned in sharding.owners]
        owners = [(rank, count, tensor if rank == sharding.ranks.rank else None) for rank, count in enumerate(counts)]
        found[name] = _DividedTensor(owners, (sum(counts),), tensor.dtype, sharding.ranks)
    return found


class _DividedTensor:
    def __init__(self, owners: Sequence[Owner], shape: tuple[int, ...], dtype: torch.dtype, ranks: TorchRanks) -> None:
        self._owners, self.shape, self._dtype, self._ranks = owners, shape, dtype, ranks

    @property
    def dtype(self) -> str:
        return NAMES[self._dtype]

    def pieces(self, dtype: str, most: int) -> Iterator[memoryview]:
        kind = TYPES[dtype]
        step = min(most, SENT) // kind.itemsize
        for rank, count, own in self._owners:
            for start in range(0, count, step):
                size = min(step, count - start)
                if own is not None:
                    piece = own[start : start + size].to(kind)
                elif self._ranks.first:
                    piece = torch.empty(size, dtype=kind, device=self._ranks.device)
                else:
                    continue
                self._ranks.pass_to_first(piece, rank)
                if self._ranks.first:
                    yield memory_of(piece.cpu())

    def places(self, dtype: str, most: int) -> Iterator[memoryview | int]:
        for _, count, own in self._owners:
            if own is None:
                yield count * TYPES[dtype].itemsize
            else:
                yield from stored({"": own})[""].places(dtype, most)

    def copied(self) -> Stored:
        raise NotImplementedError("a divided tensor is written at once")
