"""Samples of a model during training.

    sampler = Sampler(tokenizer, "Once upon a time", tokens=100, seed=1, end_id=0)
    text = sampler(model, step=500)             # the prompt and the text generated from it

The random numbers depend on the seed and the step alone, so a resumed run writes the same samples.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ramlet.engines import LARGEST_SEED, Model
from ramlet.errors import TokenizerError
from ramlet.generation.settings import SampleSettings
from ramlet.generation.writer import Writing, known_ids
from ramlet.tokenizer.tokenizer import Tokenizer


class Sampler:
    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: str = "",
        tokens: int = 100,
        seed: int = 0,
        end_id: int | None = None,
        temperature: float = 0.8,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._end_ids = frozenset() if end_id is None else frozenset([end_id])
        self._settings = SampleSettings(max_tokens=tokens, temperature=temperature, seed=seed)
        self._start = tokenizer.encode(prompt) or [self._first_id(end_id)]

    def _first_id(self, end_id: int | None) -> int:
        """The end of text, else a line break, else any token: training must not stop for it."""
        if end_id is not None:
            return end_id
        with suppress(TokenizerError):
            if ids := self._tokenizer.encode("\n"):  # tokenizers that drop white space have none
                return ids[0]
        return min(self._tokenizer.vocabulary)

    def __call__(self, model: Model, step: int) -> str:
        shape = model.shape
        ids = [number for number in self._start if number < shape.vocab_size][-max(1, shape.context // 2) :] or [0]
        settings = replace(self._settings, seed=((self._settings.seed or 0) * 1_000_003 + step) & LARGEST_SEED)
        pieces = Writing(
            model,
            self._tokenizer,
            ids,
            settings,
            end_ids=self._end_ids,
            known=known_ids(self._tokenizer, shape.vocab_size),
        )
        return self._prompt + "".join(piece for _, piece in pieces)
