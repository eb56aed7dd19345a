"""A loaded model that writes text.

    writer = open_writer(find_model("RUN"), tokenizer, settings, prompt=12, memory="1GB", precision="bf16")
    for sample, text in writer.write("Once upon a time", settings):
        ...                                     # pieces of text, of whole characters, each with its sample's number

Weights are read straight into their final place, in the type that they are used in. What writing takes is known before:
a budget too small is refused, naming the parts, before a weight is read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ramlet.engines.torch.base_memory import settled_memory
from ramlet.engines.torch.continuing import Continuation
from ramlet.engines.torch.device import Device, choose_device
from ramlet.engines.torch.gpt import GPT
from ramlet.engines.torch.model_files import load_model
from ramlet.generation.need import memory_parts
from ramlet.generation.prompt import prompt_ids
from ramlet.generation.settings import SampleSettings
from ramlet.generation.text import TextPieces
from ramlet.model.folder import ModelFolder
from ramlet.runtime.budget import Budget
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["Writer", "Writing", "known_ids", "open_writer"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def open_writer(
    found: ModelFolder,
    tokenizer: Tokenizer,
    settings: SampleSettings,
    *,
    prompt: int,
    device: str = "auto",
    precision: str = "auto",
    memory: Budget | str | int | None = None,
) -> Writer:
    """Loads a model to write with these settings behind a prompt of so many tokens."""
    place = choose_device(device)
    kind = place.precision(precision)
    fit = _Fit(place, kind, place.budget(memory), settled_memory(), found)
    fit.check(prompt, settings, vocabulary=tokenizer.vocab_size)
    place.cap(fit.budget)
    model = load_model(found, device=place.name, dtype=_TYPES[kind])
    return Writer(model, tokenizer, found.end_ids(), fit)


class _Fit:
    """What is there for a model, and whether a request fits."""

    def __init__(self, place: Device, precision: str, budget: Budget, resident: int, found: ModelFolder) -> None:
        self.place = place
        self.precision = precision
        self.budget = budget
        self._resident = resident
        self._shape = found.shape()

    def check(self, prompt: int, settings: SampleSettings, vocabulary: int = 0) -> None:
        parts = memory_parts(
            self._shape, precision=self.precision, prompt=prompt, settings=settings, vocabulary=vocabulary
        )
        if self.place.kind == "cpu":
            parts["Python and PyTorch"] = self._resident
        else:
            del parts["the tokenizer"]
        self.budget.require(sum(parts.values()), parts, measured=parts.get("Python and PyTorch", 0))


class Writer:
    def __init__(self, model: GPT, tokenizer: Tokenizer, end_ids: frozenset[int], fit: _Fit) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self._fit = fit
        self._allowed = known_ids(tokenizer, model.shape.vocab_size)

    @property
    def budget(self) -> Budget:
        """Of the process on a CPU, of the device on a GPU."""
        return self._fit.budget

    @property
    def place(self) -> Device:
        return self._fit.place

    @property
    def precision(self) -> str:
        return self._fit.precision

    def write(self, prompt: str, settings: SampleSettings) -> Writing:
        """Text that goes on from the prompt, written as it is iterated over."""
        ids = prompt_ids(prompt, self.tokenizer, self.model.shape, settings, self.end_ids)
        self._fit.check(len(ids), settings)
        return Writing(self.model, self.tokenizer, ids, settings, end_ids=self.end_ids, allowed=self._allowed)


def known_ids(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """(vocabulary,): False where the model has a row and the tokenizer no token."""
    known = torch.zeros(vocab_size, dtype=torch.bool)
    ids = torch.tensor([number for number in tokenizer.vocabulary if number < vocab_size], dtype=torch.int64)
    known[ids] = True
    return known


class Writing:
    """Texts being written: pieces as they come, each with the number of its sample."""

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        ids: list[int],
        settings: SampleSettings,
        *,
        end_ids: frozenset[int],
        allowed: Tensor | None,
    ) -> None:
        self.seed = secrets.randbelow(1 << 32) if settings.seed is None else settings.seed
        """Of the first sample; known, so that any can be written again."""
        self.tokens = [0] * settings.num_samples
        """Written so far, of each sample."""
        settings = replace(settings, seed=self.seed)
        self._continuation = Continuation(model, ids, settings, end_ids=end_ids, allowed=allowed)
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
