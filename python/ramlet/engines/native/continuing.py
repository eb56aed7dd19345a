"""Generates token ids after a prompt; the loop is that of all engines (engines/continuing.py).

    for ids in Continuation(model, prompt, settings, end_ids={0}):
        ...                                     # the next id of every sample, None for those that have ended

The weights stay where they are. Everything else has a size that is known before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from ramlet._native import NativeDecoder
from ramlet.engines import Sampling
from ramlet.engines.continuing import READING_PIECE, ContinuingLoop, cached_tokens
from ramlet.engines.native.sampling import Chooser, sampling_bytes
from ramlet.model.shape import Shape


class Decodable(Protocol):
    """A model that a decoder can run."""

    @property
    def shape(self) -> Shape: ...

    def decoder(self, *, rows: int, capacity: int, tokens: int) -> NativeDecoder:
        """For so many samples, tokens of each in the KV cache, and tokens in a forward pass."""


class Continuation(ContinuingLoop[Any]):
    def __init__(
        self,
        model: Decodable,
        prompt: Sequence[int],
        settings: Sampling,
        *,
        end_ids: Collection[int] = (),
        known: bytearray | None = None,
    ) -> None:
        """`prompt` has between one id and a full context; see `Chooser` for the rest."""
        shape = model.shape
        super().__init__(shape.context, prompt, settings, end_ids=end_ids)
        self._choose = Chooser(settings, shape.vocab_size, prompt, known)
        capacity = cached_tokens(shape.context, len(prompt), settings)
        self._decoder = model.decoder(
            rows=settings.num_samples,
            capacity=capacity,
            tokens=most_fed(shape.context, len(prompt), settings),
        )

    def feed(self, ids: Sequence[Sequence[int]]) -> None:
        self._decoder.feed(ids)

    def logits(self) -> Any:
        return self._decoder.logits()

    def exclude(self, logits: Any, ids: Collection[int]) -> None:
        logits[:, [number for number in ids if number < logits.shape[1]]] = float("-inf")

    def spread(self, logits: Any) -> Any:
        self._decoder.spread()
        return logits.repeat(self._settings.num_samples, axis=0)

    def is_full(self) -> bool:
        return self._decoder.length == self._decoder.capacity

    def clear(self) -> None:
        self._decoder.clear()

    def choose(self, logits: Any) -> list[int]:
        return self._choose(logits)


def most_fed(context: int, prompt: int, settings: Sampling) -> int:
    """The most tokens of a forward pass, over all samples: of the prompt, or of what is read again when the context is
    full."""
    again = context // 2 if prompt + settings.max_tokens > context else 1
    return max(settings.num_samples, min(READING_PIECE, max(prompt, settings.num_samples * again)))


def continuing_parts(shape: Shape, *, precision: str, prompt: int, settings: Sampling, threads: int) -> dict[str, int]:
    """Bytes by part of a `Continuation` after a prompt of this many tokens, on top of the weights."""
    capacity = cached_tokens(shape.context, prompt, settings)
    cache, rest = NativeDecoder.bytes(
        shape.to_dict(),
        bf16=precision == "bf16",
        rows=settings.num_samples,
        capacity=capacity,
        tokens=most_fed(shape.context, prompt, settings),
        threads=threads,
    )
    # The newest logits are computed while the last ones are still there, and the decoder copies the rotary tables.
    logits, tables = 2 * settings.num_samples * shape.vocab_size * 4, capacity * shape.head_width * 4
    return {
        "the KV cache": cache,
        "a forward pass": rest + logits + tables + sampling_bytes(settings, shape.vocab_size),
    }
