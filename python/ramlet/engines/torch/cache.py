"""The KV cache: keys and values of earlier tokens, allocated once.

    cache = KVCache(shape, rows=4, capacity=300, device="cpu", dtype=torch.float32)
    model.hidden(ids, positions=..., cache=cache)
    cache.advance(ids.shape[1])

It has 2 x layers x rows x key/value heads x head width x capacity elements, known before the first token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramlet.model.shape import Shape


class KVCache:
    def __init__(
        self, shape: Shape, *, rows: int, capacity: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        size = (shape.layers, 2, rows, shape.kv_heads, capacity, shape.head_width)
        # With zeros: a captured pass reads all of it, and 0 times what an empty tensor may contain need not be 0.
        self._held = torch.zeros(size, device=device, dtype=dtype)
        self.capacity = capacity
        self.length = 0
        """Tokens cached per row."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the newest tokens of the first rows, (rows, heads, tokens, head width); returns all of these rows."""
        rows, end = keys.shape[0], self.length + keys.shape[2]
        held = self._held[layer, :, :rows, :, :end]
        held[0, :, :, self.length :] = keys
        held[1, :, :, self.length :] = values
        return held[0], held[1]

    def advance(self, tokens: int) -> None:
        """Called when the newest tokens have passed all layers."""
        self.length += tokens

    def spread(self) -> None:
        """Copies the first row to all others: the prompt is read once for all samples."""
        self._held[:, :, 1:, :, : self.length] = self._held[:, :, :1, :, : self.length]

    def clear(self) -> None:
        self.length = 0

    def at(self, place: Tensor) -> OneToken:
        return OneToken(self._held, place)


class OneToken:
    """The same memory for one more token of each row, whose place is a tensor: a CUDA graph can be replayed with it."""

    def __init__(self, held: Tensor, place: Tensor) -> None:
        self._held, self._place = held, place
        self.capacity = held.shape[-2]

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns all of the cache; `mask` says how much of it is filled."""
        held = self._held[layer]
        held[0].index_copy_(2, self._place, keys)
        held[1].index_copy_(2, self._place, values)
        return held[0], held[1]

    def mask(self) -> Tensor:
        """(1, 1, 1, capacity), True up to the new token."""
        return (torch.arange(self.capacity, device=self._place.device) <= self._place)[None, None, None]
