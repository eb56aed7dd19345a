"""The ids of a prompt.

Text that looks like a special token is encoded as text. An empty prompt becomes the end-of-text token, so that the
model starts a new text.
"""

from __future__ import annotations

from ramlet.errors import ModelError, SettingsError, option
from ramlet.generation.settings import SampleSettings
from ramlet.model.shape import Shape
from ramlet.tokenizer.tokenizer import Tokenizer


def prompt_ids(
    prompt: str, tokenizer: Tokenizer, shape: Shape, settings: SampleSettings, end_ids: frozenset[int]
) -> list[int]:
    if not isinstance(prompt, str):
        raise SettingsError(f"{option('prompt')} must be text, not {type(prompt).__name__}")
    ids = tokenizer.encode(prompt)
    if not ids:
        start = tokenizer.end_of_text if tokenizer.end_of_text in end_ids or not end_ids else min(end_ids)
        if start is None:
            raise SettingsError(
                "an empty prompt needs an end-of-text token, which this tokenizer does not have: give a prompt"
            )
        ids = [start]
    if max(ids) >= shape.vocab_size:
        raise ModelError(
            f"the prompt contains the id {max(ids)}, but the model has only {shape.vocab_size:,}: "
            "its tokenizer.json belongs to another model"
        )
    if len(ids) > shape.context:
        if not settings.truncate:
            raise SettingsError(
                f"the prompt has {len(ids):,} tokens, more than the model's context of {shape.context:,}: "
                f"shorten it, or keep only its end with {option('truncate')}"
            )
        # Leave space for the new tokens, but keep at least half of the context.
        ids = ids[-max(shape.context - settings.max_tokens, shape.context // 2, 1) :]
    return ids
