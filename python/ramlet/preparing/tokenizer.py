"""The tokenizer of a dataset: the one given, the dataset's own, or the characters of the text to encode."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ramlet.dataset.manifest import Manifest
from ramlet.errors import TokenizerError, option
from ramlet.preparing.settings import NO_END_TOKEN, PrepareSettings
from ramlet.tokenizer.model import CharacterTokens, TokenizerModel, byte_model
from ramlet.tokenizer.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"


def choose(settings: PrepareSettings, own: Path | None) -> Tokenizer | None:
    """The one at `own`, if given, or that of the settings; None if it is to be learned from the text."""
    if own is not None:
        return Tokenizer.load(own)
    if settings.tokenizer == "char":
        return None
    if settings.tokenizer == "byte":
        return Tokenizer(replace(byte_model(), specials=_end_special(settings, 256)))
    return Tokenizer.load(settings.tokenizer)


def from_characters(settings: PrepareSettings, found: Iterable[str]) -> Tokenizer:
    """Every character in the texts `found` is a token, in code point order; then the special tokens."""
    occurs = bytearray(sys.maxunicode + 1)
    for text in found:
        for character in text:
            occurs[ord(character)] = 1
    # Not joined from strings of one character: all of Unicode would take 90 MB.
    codes = array("I", (code for code, one in enumerate(occurs) if one))
    tokens = CharacterTokens(codes.tobytes().decode(f"utf-32-{sys.byteorder[0]}e"))
    unknown = (UNKNOWN, len(tokens)) if settings.unknown == "unk" else None
    specials = _end_special(settings, len(tokens) + (unknown is not None))
    return Tokenizer(TokenizerModel(tokens, specials=specials, characters=True, unknown=unknown))


def _end_special(settings: PrepareSettings, number: int) -> dict[str, int]:
    """For vocabularies that are created here, without special tokens so far."""
    return {settings.end_token or END_OF_TEXT: number} if settings.end_token_wanted else {}


def end_id(settings: PrepareSettings, tokenizer: Tokenizer, before: Manifest | None) -> int | None:
    """The id after every document: the one given, that of the dataset to append to, or the tokenizer's."""
    name = settings.end_token
    if not settings.end_token_wanted:
        return None
    if name is None:
        found: int | None = before.end_id if before is not None else tokenizer.end_of_text
        return found
    if name not in tokenizer.special_tokens:
        known = ", ".join(tokenizer.special_tokens) or "none"
        raise TokenizerError(
            f"{name!r} is not a special token of this tokenizer (it has {known}): "
            f"use one of them, or {option('end_token', NO_END_TOKEN)}"
        )
    return tokenizer.special_tokens[name]
