"""CUDA graphs, captured once and then replayed: micro-batches, optimizer steps, evaluations, tokens of a sample.

Forward and backward pass of a layer are about forty kernel launches. With small micro-batches an H200 runs them faster
than Python issues them: 124M parameters, 8 x 1024 tokens, 105 ms per step eagerly. A replay is one launch, so small
micro-batches, which save memory, cost next to nothing. Muon's update is about 300 launches more, 15 ms. Between the
steps, an evaluation has 2,048 tokens in a forward pass and a sample one: both are little else than launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ramlet.engines.torch.cache import KVCache
    from ramlet.engines.torch.gpt import GPT

Learn = Callable[[Mapping[str, Tensor], float], Tensor]
Update = Callable[[Tensor, Tensor, Tensor], Tensor]
Pool = Any
"""Memory for graphs of which one is replayed at a time."""

WARM_UP = 2
"""Runs before the capture: in the first, kernels are compiled and libraries allocate their workspaces."""
MOST_SIZES = 4
"""Of evaluated batches that are captured: those of a few evaluation sets."""
Size = tuple[torch.Size, bool]
"""Of a batch, and whether it has a document mask."""


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """The one stream for all captures: every other stream would get its own workspaces, about 80 MB."""
    return torch.cuda.Stream(device)


def warm_up(learn: Learn, batch: Mapping[str, Tensor], scale: float) -> None:
    """Runs `learn` on the capture stream and releases its memory. Gradients must be cleared afterwards.

    Warm up all sizes before capturing the first: a graph keeps its memory, and a run next to it would need as much
    again.
    """
    _run_twice(lambda: learn(batch, scale))


def _run_twice(run: Callable[[], Tensor]) -> None:
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class CapturedStep:
    """A captured `learn`, for batches of one size and one scale."""

    def __init__(
        self,
        learn: Learn,
        batch: Mapping[str, Tensor],
        scale: float,
        *,
        shared: CapturedStep | None = None,
    ) -> None:
        """Only after `warm_up` with a batch of this size. Gradients do not change: a capture computes nothing.

        `shared` is another step whose memory pool this one shares: only one of them is replayed at a time.
        """
        self._inputs = dict(batch)
        self._scale = scale
        stream = _capture_stream(torch.cuda.current_device())
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=None if shared is None else shared.pool, stream=stream):
            self._total = learn(self._inputs, scale)

    @property
    def pool(self) -> Pool:
        return self._graph.pool()

    def fits(self, batch: Mapping[str, Tensor], scale: float) -> bool:
        return scale == self._scale and all(
            name in self._inputs and self._inputs[name].shape == value.shape for name, value in batch.items()
        )

    def replay(self, batch: Mapping[str, Tensor]) -> Tensor:
        for name, value in batch.items():
            self._inputs[name].copy_(value, non_blocking=True)
        self._graph.replay()
        return self._total.clone()


class CapturedUpdate:
    """A captured optimizer step with the learning rate, the largest norm and the correction of the gradients."""

    def __init__(self, update: Update, device: torch.device, shared: CapturedStep) -> None:
        """The optimizer's states exist. `shared` is a captured micro-batch whose memory pool is used again."""
        self._given = torch.zeros(3, device=device)
        self._graph = torch.cuda.CUDAGraph()
        stream = _capture_stream(torch.cuda.current_device())
        with torch.cuda.graph(self._graph, pool=shared.pool, stream=stream):
            self._grad_norm = update(*self._given.unbind())

    def replay(self, rate: float, clip: float, correction: float) -> Tensor:
        self._given.copy_(torch.tensor((rate, clip, correction)), non_blocking=True)
        self._graph.replay()
        return self._grad_norm.clone()


class CapturedRun:
    """A captured function of tensors that stay where they are; its result is overwritten by the next replay."""

    def __init__(self, run: Callable[[], Tensor], pool: Pool) -> None:
        _run_twice(run)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=_capture_stream(torch.cuda.current_device())):
            self._result = run()

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._result


class CapturedForward:
    """The forward passes of a model without gradients: in a run, in the memory of its captured steps."""

    def __init__(self, model: GPT, pool: Pool | None = None) -> None:
        self._model = model
        self._pool: Pool = torch.cuda.graph_pool_handle() if pool is None else pool
        self._losses: dict[Size, tuple[dict[str, Tensor], CapturedRun]] = {}
        self._last: Size | None = None

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """As `GPT.batch_losses`; captured if two batches in a row have the same size, for the first few sizes."""
        size = batch["input_ids"].shape, "document_ids" in batch
        repeated, self._last = size == self._last, size
        if size not in self._losses:
            if not repeated or len(self._losses) == MOST_SIZES:
                return self._model.batch_losses(batch)
            inputs = {name: value.clone() for name, value in batch.items()}
            self._losses[size] = inputs, CapturedRun(lambda: self._model.batch_losses(inputs), self._pool)
        inputs, captured = self._losses[size]
        for name, value in batch.items():
            inputs[name].copy_(value)
        return captured.replay()

    def token(self, ids: Sequence[Sequence[int]], cache: KVCache) -> CapturedToken:
        return CapturedToken(self._model, ids, cache, self._pool)


class CapturedToken:
    """The forward pass of one more token of each sample; its place in the cache is a number on the device."""

    def __init__(self, model: GPT, ids: Sequence[Sequence[int]], cache: KVCache, pool: Pool) -> None:
        """With the ids that it is first called with: warming up writes to their place in the cache."""
        self._cache = cache
        self._ids = torch.tensor(ids, device=model.device)
        self._place = torch.tensor([cache.length], device=model.device)
        placed = cache.at(self._place)
        self._captured = CapturedRun(
            lambda: model.hidden(
                self._ids, positions=self._place.expand(len(ids), 1), mask=placed.mask(), cache=placed
            ),
            pool,
        )

    def __call__(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """The last hidden states, (samples, width)."""
        self._ids.copy_(torch.tensor(ids))
        self._place.fill_(self._cache.length)
        return self._captured.replay().clone()
