"""Logits -> the next token of every sample.

As in the torch engine: repetition penalty, temperature, top-k, top-p, then sampling, which inverts the cumulative
probabilities with one random number per token. Every sample has its own generator, so its random numbers do not depend
on the other samples. They are Python's, which are the same everywhere, and so is the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ramlet._native import NativeChooser
from ramlet.engines import Sampling
from ramlet.engines.continuing import not_a_number, sample_seeds


class Chooser:
    def __init__(
        self, settings: Sampling, vocab_size: int, prompt: Sequence[int], known: bytearray | None = None
    ) -> None:
        """`settings.seed` is set; `known` is 0 for ids without a token, which are never chosen."""
        self._generators = [Random(seed) for seed in sample_seeds(settings)]
        self._native = NativeChooser(
            vocab_size,
            settings.num_samples,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
            prompt=prompt,
            known=None if known is None or all(known) else bytes(known),
        )

    def __call__(self, logits: Any) -> list[int]:
        """The chosen ids; `logits` are a NumPy array (samples, vocabulary) of fp32."""
        chosen = self._native.choose(logits, [generator.random() for generator in self._generators])
        if chosen is None:
            raise not_a_number()
        return chosen


def sampling_bytes(settings: Sampling, vocab_size: int) -> int:
    """All memory that a `Chooser` takes."""
    return NativeChooser.bytes(
        vocab_size, settings.num_samples, top_p=settings.top_p, repetition_penalty=settings.repetition_penalty
    )
