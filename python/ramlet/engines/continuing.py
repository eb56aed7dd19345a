"""The loop of generation: token ids after a prompt, for any number of samples in one batch. The same for all engines.

    for ids in continuation:
        ...                                     # the next id of every sample, None for those that have ended

The prompt is read once, in pieces, for all samples. When the context is full, its last half is read again from
position 0 and generation continues: a text may be longer than the context, at the cost of one such pass every half
context. Memory is that of the cache and of one piece, however long the text is.

A prompt that ends with an end-of-text token starts a new text, which has at least one token: no document of a dataset
is empty, but a model that has seen few ends knows little of what follows one, and with a tied embedding it guesses the
same token again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar

from ramlet.engines import LARGEST_SEED, Sampling
from ramlet.errors import ModelError, option

READING_PIECE = 256
"""Tokens of a prompt in one forward pass, over all samples."""

Logits = TypeVar("Logits")
"""An array of the engine's, (rows, vocabulary)."""


def cached_tokens(context: int, prompt: int, settings: Sampling) -> int:
    """Of each sample, at most."""
    return min(context, prompt + settings.max_tokens)


def tokens_at_once(capacity: int, settings: Sampling) -> int:
    """The most tokens of a forward pass, over all samples."""
    return max(settings.num_samples, min(READING_PIECE, settings.num_samples * capacity))


def sample_seeds(settings: Sampling) -> list[int]:
    """Every sample has its own random numbers: the first those of the seed, the next those of the one after it."""
    return [((settings.seed or 0) + number) & LARGEST_SEED for number in range(settings.num_samples)]


def not_a_number() -> ModelError:
    return ModelError(f"the model's logits are NaN: its weights are damaged, or need {option('precision', 'fp32')}")


class ContinuingLoop(ABC, Generic[Logits]):
    """A subclass has the KV cache of an engine, the forward pass and the choice of tokens."""

    def __init__(
        self, context: int, prompt: Sequence[int], settings: Sampling, *, end_ids: Collection[int] = ()
    ) -> None:
        """`prompt` has between one id and a full context; `settings.seed` is set."""
        assert 0 < len(prompt) <= context
        self._settings = settings
        self._end_ids = end_ids
        self._prompt = list(prompt)
        self._ended = [False] * settings.num_samples
        # Read again when the context is full.
        self._kept = [deque(prompt, maxlen=max(1, context // 2)) for _ in range(settings.num_samples)]

    def end(self, sample: int) -> None:
        self._ended[sample] = True

    def __iter__(self) -> Iterator[list[int | None]]:
        ended = self._ended
        logits = self._read([self._prompt])
        if self._prompt[-1] in self._end_ids:
            self.exclude(logits, self._end_ids)
        logits = self.spread(logits)
        for left in range(self._settings.max_tokens - 1, -1, -1):
            chosen = self.choose(logits)
            for sample, token in enumerate(chosen):
                ended[sample] |= token in self._end_ids
            yield [None if end else token for end, token in zip(ended, chosen)]
            if all(ended) or not left:
                return
            for kept, token in zip(self._kept, chosen):
                kept.append(token)
            if self.is_full():
                self.clear()
                logits = self._read([list(kept) for kept in self._kept])
            else:
                logits = self._read([[token] for token in chosen])

    def _read(self, ids: Sequence[Sequence[int]]) -> Logits:
        """The logits after the last of the ids, equally many in each row, which follow what is cached."""
        step = max(1, READING_PIECE // len(ids))
        for start in range(0, len(ids[0]), step):
            self.feed([row[start : start + step] for row in ids])
        return self.logits()

    @abstractmethod
    def feed(self, ids: Sequence[Sequence[int]]) -> None:
        """The forward pass of the next ids of the first rows."""

    @abstractmethod
    def logits(self) -> Logits:
        """After the last ids; a new array, which may be overwritten."""

    @abstractmethod
    def exclude(self, logits: Logits, ids: Collection[int]) -> None:
        """Makes these ids impossible; they may be larger than the vocabulary."""

    @abstractmethod
    def spread(self, logits: Logits) -> Logits:
        """Copies the first row, of the cache and of the logits, to all samples."""

    @abstractmethod
    def is_full(self) -> bool:
        """Whether the cache is."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets what is cached."""

    @abstractmethod
    def choose(self, logits: Logits) -> list[int]:
        """The next id of every sample."""
