"""Reference implementation of generation: no KV cache, one sample at a time, a loop over the vocabulary per token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ramlet.engines.torch.gpt import GPT
from ramlet.generation.settings import SampleSettings


def slow_continuation(
    model: GPT, prompt: Sequence[int], settings: SampleSettings, sample: int = 0, end_ids: Collection[int] = ()
) -> list[int]:
    """The ids of one sample, without the end id."""
    generator = torch.Generator().manual_seed((settings.seed or 0) + sample)
    seen, window, written = set(prompt), list(prompt), []
    for _ in range(settings.max_tokens):
        if len(window) > model.shape.context:
            window = window[-max(1, model.shape.context // 2) :]
        logits = model.logits(torch.tensor([window]))[0, -1].tolist()
        token = slow_choice(logits, settings, seen, generator)
        if token in end_ids:
            break
        seen.add(token)
        window.append(token)
        written.append(token)
    return written


def slow_choice(logits: list[float], settings: SampleSettings, seen: set[int], generator: torch.Generator) -> int:
    for token in seen:
        penalty = settings.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if settings.temperature == 0:
        return order[0]
    weights = [2.718281828459045 ** ((value - logits[order[0]]) / settings.temperature) for value in logits]
    kept = order[: settings.top_k] if settings.top_k else order
    if settings.top_p:
        whole, sum_before, within = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            if sum_before < settings.top_p * whole:
                within.append(token)
            sum_before += weights[token]
        kept = within
    draw = torch.rand(1, generator=generator, dtype=torch.float64).item() * sum(weights[token] for token in kept)
    for token in sorted(kept):
        draw -= weights[token]
        if draw < 0:
            return token
    return max(kept)
