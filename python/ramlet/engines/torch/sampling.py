"""Logits -> the next token of every sample.

In the order of transformers: repetition penalty, temperature, top-k, top-p, then sampling. Every sample has its own
generator on the CPU, so its random numbers depend neither on the device nor on the other samples. Sampling inverts the
cumulative probabilities in fp64: one random number per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ramlet.engines import Sampling
from ramlet.engines.continuing import not_a_number, sample_seeds

FP32 = torch.finfo(torch.float32)
"""Of the logits: torch converts the settings to it."""


class Chooser:
    def __init__(
        self, settings: Sampling, vocab_size: int, prompt: Sequence[int], known: bytearray | None = None
    ) -> None:
        """`settings.seed` is set; `known` is 0 for ids without a token, which are never chosen."""
        self._settings = settings
        self._excluded = ~torch.frombuffer(known, dtype=torch.bool) if known and not all(known) else None
        self._generators = [torch.Generator().manual_seed(seed) for seed in sample_seeds(settings)]
        self._seen: Tensor | None = None
        if settings.repetition_penalty != 1:
            self._seen = torch.zeros(settings.num_samples, vocab_size, dtype=torch.bool)
            self._seen[:, torch.tensor(list(prompt))] = True

    def __call__(self, logits: Tensor) -> list[int]:
        """The chosen ids; `logits` (samples, vocabulary), fp32 on the CPU, are overwritten."""
        if bool(logits.isnan().any()):
            raise not_a_number()
        if self._excluded is not None:
            logits.masked_fill_(self._excluded, -torch.inf)
        if self._seen is not None:
            penalty = min(max(self._settings.repetition_penalty, FP32.tiny), FP32.max)
            logits = torch.where(self._seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
            logits = logits.clamp(max=FP32.max)
        chosen = logits.argmax(-1) if self._settings.temperature == 0 else self._sample(self._probabilities(logits))
        if self._seen is not None:
            self._seen[torch.arange(len(chosen)), chosen] = True
        ids: list[int] = chosen.tolist()
        return ids

    def _probabilities(self, logits: Tensor) -> Tensor:
        settings = self._settings
        # Subtract the largest first, so that even the smallest temperature causes no infinities.
        logits = (logits - logits.amax(-1, keepdim=True)) / max(settings.temperature, FP32.tiny)
        if settings.top_k is not None and settings.top_k < logits.shape[1]:
            least = logits.topk(settings.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        probabilities = torch.softmax(logits.double(), -1)
        if settings.top_p is not None and settings.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            beyond = ordered.cumsum(-1) - ordered >= settings.top_p
            probabilities = probabilities.scatter(1, order, ordered.masked_fill(beyond, 0.0))
        return probabilities

    def _sample(self, probabilities: Tensor) -> Tensor:
        cumulative = probabilities.cumsum(-1)
        draws = [torch.rand(1, generator=generator, dtype=torch.float64) for generator in self._generators]
        wanted = torch.stack(draws) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_max(probabilities.shape[1] - 1)
