"""The settings of tokenizer training, each checked once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ramlet import _native
from ramlet.errors import SettingsError, option
from ramlet.inputs.settings import ReadSettings
from ramlet.tokenizer.model import bytes_in_order, check_names

__all__ = ["KINDS", "TrainSettings"]

KINDS = ("bpe", "char", "byte")
LARGEST = 1 << 24
"""Ids that the encoder's cache has room for."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(ReadSettings):
    """All that decides the result, and nothing that does not (memory, threads, folders)."""

    vocab_size: int | None = None
    """Tokens in all, special ones included. For characters the most frequent ones are kept, if it is given."""

    kind: str = "bpe"
    """`bpe`, `char` (one token a character of the corpus) or `byte` (nothing to learn)."""

    pattern: str = "gpt2"
    """How text is cut into pieces: gpt2, cl100k, o200k, llama3, qwen2 or any regex."""

    special_tokens: tuple[str, ...] = ()
    """Cut out of the text before counting; they get the last ids, in this order."""

    tie_break: str = "hf"
    """Of pairs equally frequent: `hf` takes the smallest ids, as HF does; `bytes` the greatest byte strings."""

    min_frequency: int = 0
    """Pairs that occur less often are not merged."""

    max_token_bytes: int | None = None
    """No longer token is learned."""

    unknown: str = "error"
    """What a character tokenizer does with a character it lacks: an `error`, or `unk`, the token <unk>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (
            ("kind", KINDS),
            ("tie_break", ("hf", "bytes")),
            ("unknown", ("error", "unk")),
        ):
            self._check_choice(name, allowed)
        if self.min_frequency < 0:
            raise SettingsError(f"a frequency of at least {self.min_frequency} makes no sense: give 0 or more")
        if self.max_token_bytes is not None and self.max_token_bytes < 1:
            raise SettingsError(f"tokens of at most {self.max_token_bytes} bytes cannot be: give 1 or more")
        check_names(self.special_tokens, [] if self.kind == "char" else bytes_in_order())
        self._check_size()

    def _check_size(self) -> None:
        specials = len(self.special_tokens)
        if self.vocab_size is None:
            if self.kind == "bpe":
                raise SettingsError(f"say how many tokens to learn: {option('vocab_size', 32000)}, for example")
            return
        least = specials + (256 if self.kind != "char" else 1 + (self.unknown == "unk"))
        if self.vocab_size < least:
            raise SettingsError(
                f"a vocabulary of {self.vocab_size:,} has no room for "
                f"{'the 256 bytes' if self.kind != 'char' else 'any character'} and {specials} special tokens: "
                f"give at least {least}"
            )
        if self.vocab_size > LARGEST:
            raise SettingsError(f"a vocabulary of {self.vocab_size:,} is beyond the limit of {LARGEST:,}")

    def counting_parts(self) -> Iterator[bytes]:
        """What the counts depend on; the size of the vocabulary is not of it."""
        yield b"ramlet counts 1"
        yield _native.pattern_regex(self.pattern).encode()
        yield json.dumps([self.special_tokens, self.reading()]).encode()
