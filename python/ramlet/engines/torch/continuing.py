"""Generates token ids after a prompt; the loop is that of all engines (engines/continuing.py).

for ids in Continuation(model, prompt, settings, end_ids={0}):
    ...                                     # the next id of every sample, None for those that have ended
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ramlet.engines import Sampling
from ramlet.engines.continuing import ContinuingLoop, cached_tokens
from ramlet.engines.torch.cache import KVCache
from ramlet.engines.torch.captured import CapturedToken
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.sampling import Chooser


class Continuation(ContinuingLoop[Tensor]):
    def __init__(
        self,
        model: GPT,
        prompt: Sequence[int],
        settings: Sampling,
        *,
        end_ids: Collection[int] = (),
        known: bytearray | None = None,
    ) -> None:
        """`prompt` has between one id and a full context; see `Chooser` for the rest."""
        shape = model.shape
        super().__init__(shape.context, prompt, settings, end_ids=end_ids)
        self._model = model
        self._choose = Chooser(settings, shape.vocab_size, prompt, known)
        self._cache = KVCache(
            shape,
            rows=settings.num_samples,
            capacity=cached_tokens(shape.context, len(prompt), settings),
            device=model.device,
            dtype=model.compute,
        )
        self._last: Tensor
        """Hidden states, (rows, width)."""
        self._token: CapturedToken | None = None

    @torch.no_grad()
    def feed(self, ids: Sequence[Sequence[int]]) -> None:
        device = self._model.device
        if self._model.can_capture and len(ids[0]) == 1 and len(ids) == self._settings.num_samples:
            self._token = self._token or self._model.captured().token(ids, self._cache)
            self._last = self._token(ids)
            self._cache.advance(1)
            return
        piece = torch.tensor(ids, device=device)
        rows, count = piece.shape
        before = self._cache.length
        positions = torch.arange(before, before + count, device=device)
        mask = None
        if before and count > 1:
            mask = (torch.arange(before + count, device=device) <= positions[:, None])[None, None]
        hidden = self._model.hidden(piece, positions=positions.expand(rows, count), mask=mask, cache=self._cache)
        self._cache.advance(count)
        self._last = hidden.view(rows, count, -1)[:, -1].clone()

    @torch.no_grad()
    def logits(self) -> Tensor:
        logits = torch.mm(self._last, self._model.head.t())[:, : self._model.shape.vocab_size]
        return logits.to("cpu", torch.float32, copy=True)

    def exclude(self, logits: Tensor, ids: Collection[int]) -> None:
        logits[:, [number for number in ids if number < logits.shape[1]]] = -torch.inf

    def spread(self, logits: Tensor) -> Tensor:
        self._cache.spread()
        return logits.repeat(self._settings.num_samples, 1)

    def is_full(self) -> bool:
        return self._cache.length == self._cache.capacity

    def clear(self) -> None:
        self._cache.clear()

    def choose(self, logits: Tensor) -> list[int]:
        chosen = self._choose(logits)
        sharding = self._model.weights.sharding
        if sharding is None or not sharding.divides_weights:
            return chosen
        # Each rank generates the text; a last bit that differs must not lead to another one.
        ids = torch.tensor(chosen, device=sharding.ranks.device)
        sharding.ranks.send_to_all(ids, 0).wait()
        return [int(each) for each in ids.tolist()]
