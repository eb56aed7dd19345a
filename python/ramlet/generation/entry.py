"""`ramlet.generate` and its stream: everything before the engine is loaded.

    ramlet.generate("RUN", "Once upon a time", max_tokens=100, num_samples=3, seed=1)
    for piece in stream("RUN", "Once upon a time"):
        print(piece, end="", flush=True)

The returned text follows the prompt and does not include it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ramlet.engines.opening import check_hardware, open_engine
from ramlet.errors import SettingsError, option
from ramlet.generation.prompt import prompt_ids
from ramlet.generation.settings import SampleSettings
from ramlet.generation.writer import Writer
from ramlet.model.folder import find_model
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.settings.names import given_to
from ramlet.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ramlet.settings.typed import GenerateSettings

CACHE_BYTES = 4 << 20
"""The tokenizer's word cache: prompts are short."""


def generate(
    run: str | os.PathLike[str],
    prompt: str = "",
    *,
    device: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    memory: Budget | str | int | None = None,
    **settings: Unpack[GenerateSettings],
) -> list[str]:
    """Generates text that follows the prompt, one string per sample.

        print(ramlet.generate("my-run", "Once upon a time", max_tokens=100, seed=1)[0])

    `run` is a run, one of its checkpoints, or a Llama or Qwen3 folder of transformers. `device` is cpu, cuda or tpu
    [default: a GPU or TPU if available], `engine` torch, native or jax [default: native on a CPU, jax on a TPU],
    `precision` fp32, bf16 or fp16 [default: the fastest on the device]. The settings are those of `SampleSettings`:
    max_tokens, temperature, top_k, top_p, repetition_penalty, seed, num_samples, stop, truncate.
    """
    chosen = _chosen(settings)
    writer = load(run, chosen, prompt=prompt, device=device, engine=engine, precision=precision, memory=memory)
    texts = [""] * chosen.num_samples
    for sample, piece in writer.write(prompt, chosen):
        texts[sample] += piece
    return texts


def stream(
    run: str | os.PathLike[str],
    prompt: str = "",
    *,
    device: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    memory: Budget | str | int | None = None,
    **settings: Unpack[GenerateSettings],
) -> Iterator[str]:
    """The same text as from `generate`, in pieces of whole characters as they are generated."""
    chosen = _chosen(settings)
    if chosen.num_samples != 1:
        raise SettingsError(f"only one text can be streamed: do not give {option('num_samples')}")
    writer = load(run, chosen, prompt=prompt, device=device, engine=engine, precision=precision, memory=memory)
    return (piece for _, piece in writer.write(prompt, chosen))


def _chosen(settings: Mapping[str, Any]) -> SampleSettings:
    return SampleSettings(**given_to(generate, settings, SampleSettings))


def load(
    run: str | os.PathLike[str],
    settings: SampleSettings,
    *,
    prompt: str | None = None,
    device: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    memory: Budget | str | int | None = None,
    threads: int | None = None,
    meter: Meter | None = None,
) -> Writer:
    """Loads a model for generation; without a prompt, for prompts of any usual length."""
    check_hardware(device, precision, engine)
    found = find_model(run)
    shape = found.shape()
    tokenizer = Tokenizer.load(found.tokenizer_file, memory=CACHE_BYTES)
    length = shape.usual_length
    if prompt is not None:
        # Errors in the prompt are reported before the engine is loaded.
        length = len(prompt_ids(prompt, tokenizer, shape, settings, found.end_ids()))
    opened = open_engine(device or "auto", threads, name=engine or "auto")
    if meter is not None:
        meter.sample()
    return Writer(
        opened,
        found,
        tokenizer,
        settings,
        prompt=length,
        precision=precision or "auto",
        memory=memory,
        meter=meter,
    )
