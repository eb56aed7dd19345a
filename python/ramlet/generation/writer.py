"""A loaded model that generates text.

    writer = Writer(open_engine(), find_model("RUN"), tokenizer, settings, prompt=12, memory="1GB")
    for sample, text in writer.write("Once upon a time", settings):
        ...                                     # pieces of text, of whole characters, each with its sample's number

Weights are read directly into their final place and precision. The memory of generation is known in advance: a budget
that is too small is refused, part by part, before any weight is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from ramlet.engines import Engine, Model
from ramlet.engines.opening import check_of_weights
from ramlet.generation.prompt import prompt_ids
from ramlet.generation.settings import SampleSettings
from ramlet.generation.text import TextPieces
from ramlet.model.folder import ModelFolder
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.tokenizer.tokenizer import Tokenizer


class Writer:
    def __init__(
        self,
        engine: Engine,
        found: ModelFolder,
        tokenizer: Tokenizer,
        settings: SampleSettings,
        *,
        prompt: int,
        precision: str = "auto",
        memory: Budget | str | int | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Loads a model to generate with these settings after a prompt of this many tokens."""
        check_of_weights(precision)
        self.engine = engine
        self.precision = engine.precision(precision)
        self.budget = engine.budget(memory)
        """That of the process on a CPU, of the device on a GPU."""
        self.tokenizer = tokenizer
        self._loaded = meter.peak if meter is not None and engine.uses_host_memory else 0
        """The peak until now: less is not enough, however small the model is."""
        self._resident = engine.resident()
        self._shape = found.shape()
        self._require_memory(prompt, settings, vocabulary=tokenizer.vocab_size)
        engine.cap(self.budget)
        self.model = engine.load(found, self.precision)
        self.end_ids = found.end_ids()
        self._known = known_ids(tokenizer, self._shape.vocab_size)

    def _require_memory(self, prompt: int, settings: SampleSettings, vocabulary: int = 0) -> None:
        parts = self.engine.generation_parts(
            self._shape, precision=self.precision, prompt=prompt, settings=settings, vocabulary=vocabulary
        )
        if self._resident:
            parts[self.engine.baseline] = self._resident
        if self._loaded > sum(parts.values()):
            self.budget.require(self._loaded, f"loading {self.engine.baseline}", measured=self._loaded)
        else:
            self.budget.require(sum(parts.values()), parts, measured=self._resident)

    def write(self, prompt: str, settings: SampleSettings) -> Writing:
        """The text after the prompt, generated as it is iterated over."""
        ids = prompt_ids(prompt, self.tokenizer, self._shape, settings, self.end_ids)
        self._require_memory(len(ids), settings)
        return Writing(self.model, self.tokenizer, ids, settings, end_ids=self.end_ids, known=self._known)


def known_ids(tokenizer: Tokenizer, vocab_size: int) -> bytearray:
    """A byte per id: 0 if the tokenizer has no token for it."""
    known = bytearray(vocab_size)
    for number in tokenizer.vocabulary:
        if number < vocab_size:
            known[number] = 1
    return known


class Writing:
    """Texts being generated: pieces of text, each with the number of its sample."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        ids: list[int],
        settings: SampleSettings,
        *,
        end_ids: frozenset[int],
        known: bytearray | None,
    ) -> None:
        self.seed = int.from_bytes(os.urandom(4), "little") if settings.seed is None else settings.seed
        """Of the first sample, so that any of them can be generated again."""
        self.tokens = [0] * settings.num_samples
        """Generated so far, by sample."""
        settings = replace(settings, seed=self.seed)
        self._continuation = model.continuation(ids, settings, end_ids=end_ids, known=known)
        self._pieces = [TextPieces(tokenizer, stop=settings.stop, prompt=ids) for _ in self.tokens]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for tokens in self._continuation:
            for sample, token in enumerate(tokens):
                if token is None:
                    continue
                self.tokens[sample] += 1
                if text := self._pieces[sample].push(token):
                    yield sample, text
                if self._pieces[sample].stopped:
                    self._continuation.end(sample)
        for sample, pieces in enumerate(self._pieces):
            if text := pieces.finish():
                yield sample, text
