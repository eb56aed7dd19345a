"""A prompt as the ids that a model reads first.

Text that looks like a special token is text. An empty prompt is the end of the text before: the model begins a new one.
"""

from __future__ import annotations

from ramlet.errors import ModelError, SettingsError, option
from ramlet.generation.settings import SampleSettings
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["prompt_ids"]


def prompt_ids(
    prompt: str, tokenizer: Tokenizer, shape: Shape, settings: SampleSettings, end_ids: frozenset[int]
) -> list[int]:
    ids = tokenizer.encode(prompt)
    if not ids:
        start = tokenizer.end_of_text if tokenizer.end_of_text in end_ids or not end_ids else min(end_ids)
        if start is None:
            raise SettingsError(
                "an empty prompt begins behind an end of text, for which this tokenizer has no token: give a prompt"
            )
        ids = [start]
    if max(ids) >= shape.vocab_size:
        raise ModelError(
            f"the prompt becomes the id {max(ids)}, and the model has {shape.vocab_size:,}: "
            "the tokenizer.json beside it is that of another model"
        )
    if len(ids) > shape.context:
        if not settings.truncate:
            raise SettingsError(
                f"the prompt is {len(ids):,} tokens long and the model sees {shape.context:,} at once: "
                f"shorten it, or let {option('truncate')} keep its end"
            )
        # With room for what is to be written, but not at the cost of more than half.
        ids = ids[-max(shape.context - settings.max_tokens, shape.context // 2, 1) :]
    return ids
