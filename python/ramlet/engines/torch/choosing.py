"""Logits -> the next token of every sample.

In the order that transformers has: repetition penalty, temperature, top-k, top-p, then a draw. Every sample draws from
a generator of its own, on the CPU, so its numbers are the same on any device and beside any other samples. A draw
inverts the cumulated probabilities in fp64: one number a token, whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ramlet.engines import LARGEST_SEED, Sampling
from ramlet.errors import ModelError, option

__all__ = ["Chooser"]


class Chooser:
    def __init__(
        self, settings: Sampling, vocab_size: int, prompt: Sequence[int], known: bytearray | None = None
    ) -> None:
        """`settings` with a seed; `known` is 0 for ids that no token has."""
        self._settings = settings
        allowed = torch.frombuffer(known, dtype=torch.bool) if known and not all(known) else None
        self._refused = None if allowed is None else ~allowed
        seed = settings.seed or 0
        self._generators = [
            torch.Generator().manual_seed((seed + number) & LARGEST_SEED) for number in range(settings.num_samples)
        ]
        self._seen: Tensor | None = None
        if settings.repetition_penalty != 1:
            self._seen = torch.zeros(settings.num_samples, vocab_size, dtype=torch.bool)
            self._seen[:, torch.tensor(list(prompt))] = True

    def __call__(self, logits: Tensor) -> list[int]:
        """The ids chosen; `logits` (samples, vocabulary), fp32 on the CPU, are used up."""
        if bool(logits.isnan().any()):
            raise ModelError(
                f"the model's results are not numbers: its weights are damaged, or need {option('precision', 'fp32')}"
            )
        if self._refused is not None:
            logits.masked_fill_(self._refused, -torch.inf)
        if self._seen is not None:
            penalty = self._settings.repetition_penalty
            logits = torch.where(self._seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        chosen = logits.argmax(-1) if self._settings.temperature == 0 else self._draw(self._probabilities(logits))
        if self._seen is not None:
            self._seen[torch.arange(len(chosen)), chosen] = True
        ids: list[int] = chosen.tolist()
        return ids

    def _probabilities(self, logits: Tensor) -> Tensor:
        settings = self._settings
        # The largest becomes 0 first, so that no temperature, however small, makes infinities.
        logits = (logits - logits.amax(-1, keepdim=True)) / settings.temperature
        if settings.top_k is not None and settings.top_k < logits.shape[1]:
            least = logits.topk(settings.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        probabilities = torch.softmax(logits.double(), -1)
        if settings.top_p is not None and settings.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            beyond = ordered.cumsum(-1) - ordered >= settings.top_p
            probabilities = probabilities.scatter(1, order, ordered.masked_fill(beyond, 0.0))
        return probabilities

    def _draw(self, probabilities: Tensor) -> Tensor:
        cumulated = probabilities.cumsum(-1)
        draws = [torch.rand(1, generator=generator, dtype=torch.float64) for generator in self._generators]
        wanted = torch.stack(draws) * cumulated[:, -1:]
        return torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp_max(probabilities.shape[1] - 1)
