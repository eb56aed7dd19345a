"""Generates token ids after a prompt, for any number of samples in one batch.

    for ids in Continuation(model, prompt, settings, end_ids={0}):
        ...                                     # the next id of every sample, None for those that have ended

The prompt is read once, in pieces, for all samples. When the context is full, its last half is read again from
position 0 and generation continues: a text may be longer than the context, at the cost of one such pass every half
context. Memory is that of the cache and of one piece, however long the text is.

A prompt that ends with an end-of-text token starts a new text, which has at least one token: no document of a dataset
is empty, but a model that has seen few ends knows little of what follows one, and with a tied embedding it guesses the
same token again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from ramlet.engines import Sampling
from ramlet.engines.torch.cache import KVCache
from ramlet.engines.torch.choosing import Chooser
from ramlet.engines.torch.forward_memory import READING_PIECE
from ramlet.engines.torch.gpt import GPT


class Continuation:
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
        assert 0 < len(prompt) <= shape.context
        self._model = model
        self._settings = settings
        self._end_ids = end_ids
        self._prompt = prompt
        self._ended = [False] * settings.num_samples
        # Read again when the context is full.
        self._kept = [deque(prompt, maxlen=max(1, shape.context // 2)) for _ in range(settings.num_samples)]
        self._choose = Chooser(settings, shape.vocab_size, prompt, known)
        self._cache = KVCache(
            shape,
            rows=settings.num_samples,
            capacity=min(shape.context, len(prompt) + settings.max_tokens),
            device=model.device,
            dtype=model.compute,
        )

    def end(self, sample: int) -> None:
        self._ended[sample] = True

    def __iter__(self) -> Iterator[list[int | None]]:
        ended = self._ended
        logits = self._read(torch.tensor([list(self._prompt)]))
        if self._prompt[-1] in self._end_ids:
            logits[:, [number for number in self._end_ids if number < logits.shape[1]]] = -torch.inf
        self._cache.spread()
        logits = logits.repeat(len(ended), 1)
        for left in range(self._settings.max_tokens - 1, -1, -1):
            chosen = self._choose(logits)
            for sample, token in enumerate(chosen):
                ended[sample] |= token in self._end_ids
            yield [None if end else token for end, token in zip(ended, chosen)]
            if all(ended) or not left:
                return
            for kept, token in zip(self._kept, chosen):
                kept.append(token)
            if self._cache.length < self._cache.capacity:
                logits = self._read(torch.tensor(chosen)[:, None])
            else:
                self._cache.clear()
                logits = self._read(torch.tensor([list(kept) for kept in self._kept]))

    @torch.no_grad()
    def _read(self, ids: Tensor) -> Tensor:
        """The logits after the last of the ids (rows, tokens), which follow what is cached."""
        rows, tokens = ids.shape
        ids = ids.to(self._model.device)
        step = max(1, READING_PIECE // rows)
        for start in range(0, tokens, step):
            piece = ids[:, start : start + step]
            before, count = self._cache.length, piece.shape[1]
            positions = torch.arange(before, before + count, device=ids.device)
            mask = None
            if before and count > 1:
                mask = (torch.arange(before + count, device=ids.device) <= positions[:, None])[None, None]
            hidden = self._model.hidden(piece, positions=positions.expand(rows, count), mask=mask, cache=self._cache)
            self._cache.advance(count)
        last = hidden.view(rows, count, -1)[:, -1]
        logits = torch.mm(last, self._model.head.t())[:, : self._model.shape.vocab_size]
        return logits.to("cpu", torch.float32, copy=True)
