"""A micro-batch as a CUDA graph: recorded once, replayed ever after.

Forward and backward of a layer are some forty launches, which Python makes slower than an H200 works them off where
micro-batches are small: 124M parameters, 8 x 1024 tokens, 105 ms a step eagerly. A replay is one launch, so small
micro-batches, which are what saves memory, cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

__all__ = ["CapturedStep", "warm_up"]

Learn = Callable[[Mapping[str, Tensor], float], Tensor]

WARM_UP = 2
"""Runs before the recording: kernels are compiled and libraries take their workspaces in the first."""


@cache
def _aside(device: int) -> torch.cuda.Stream:
    """The stream of all recordings: every other would get workspaces of its own, some 80 MB."""
    return torch.cuda.Stream(device)


def warm_up(learn: Learn, batch: Mapping[str, Tensor], scale: float) -> None:
    """Runs `learn` where it will be recorded, and leaves no memory held. Gradients must be cleared afterwards.

    All sizes are warmed up before the first is recorded: a recording keeps its memory, and a run beside it would need
    as much again.
    """
    aside = _aside(torch.cuda.current_device())
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            learn(batch, scale)
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class CapturedStep:
    """One way through `learn`, for batches of one size and one scale."""

    def __init__(
        self,
        learn: Learn,
        batch: Mapping[str, Tensor],
        scale: float,
        *,
        beside: CapturedStep | None = None,
    ) -> None:
        """Only after `warm_up` with a batch of this size. Gradients are as they were: a recording runs nothing.

        `beside` is another whose memory this one may use: only one of them is ever replayed at a time.
        """
        self._inputs = dict(batch)
        self._scale = scale
        aside = _aside(torch.cuda.current_device())
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=None if beside is None else beside._graph.pool(), stream=aside):
            self._total = learn(self._inputs, scale)

    def fits(self, batch: Mapping[str, Tensor], scale: float) -> bool:
        return scale == self._scale and all(
            name in self._inputs and self._inputs[name].shape == value.shape for name, value in batch.items()
        )

    def replay(self, batch: Mapping[str, Tensor]) -> Tensor:
        for name, value in batch.items():
            self._inputs[name].copy_(value, non_blocking=True)
        self._graph.replay()
        return self._total.clone()
