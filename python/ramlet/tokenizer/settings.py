"""The settings of tokenizer training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ramlet.errors import SettingsError, option
from ramlet.inputs.settings import ReadSettings
from ramlet.runtime.plurals import plural
from ramlet.settings.declared import setting
from ramlet.settings.kinds import Choice, Count, Strings, Text

KINDS = ("bpe", "char", "byte")
VOCABULARY, MERGES = "Vocabulary", "Merges"
LARGEST = 1 << 24
"""The most ids that the encoder's cache can represent."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(ReadSettings):
    """Everything that decides the result, and nothing that does not (memory, threads, folders)."""

    vocab_size: int | None = setting(
        None,
        Count(most=LARGEST),
        "Vocabulary size, special tokens included: 32k; required for bpe. char keeps the most frequent characters.",
        short="v",
        panel=VOCABULARY,
    )
    kind: str = setting(
        "bpe",
        Choice(KINDS),
        "Byte-pair encoding, one token per character of the text, or one per byte.",
        called=("type", "tokenizer_type"),
        panel=VOCABULARY,
    )
    pattern: str = setting(
        "gpt2",
        Text(metavar="gpt2|cl100k|o200k|llama3|qwen2|REGEX"),
        "Pre-tokenization: how text is split before merging.",
        panel=MERGES,
    )
    special_tokens: tuple[str, ...] = setting(
        (),
        Strings(empty=True),
        "Special token, ignored in the text; may be given several times. They get the last ids, in this order.",
        called=("special_token", "special_tokens"),
        short="s",
        panel=VOCABULARY,
    )
    tie_break: str = setting(
        "hf",
        Choice(("hf", "bytes")),
        "Of equally frequent pairs, merge the one with the smallest ids (hf) or the largest bytes (bytes) first.",
        panel=MERGES,
    )
    min_frequency: int = setting(0, Count(least=0), "Merge only pairs that occur at least this often.", panel=MERGES)
    max_token_bytes: int | None = setting(None, Count(), "Learn no token longer than this many bytes.", panel=MERGES)
    unknown: str = setting(
        "error",
        Choice(("error", "unk")),
        "With {kind} char: a character that the vocabulary lacks is an error, or becomes the token <unk>.",
        panel=VOCABULARY,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        from ramlet.tokenizer.model import bytes_in_order, check_names  # help pages do not need it

        check_names(self.special_tokens, [] if self.kind == "char" else bytes_in_order())
        self._check_size()

    def _check_size(self) -> None:
        specials = len(self.special_tokens)
        if self.vocab_size is None:
            if self.kind == "bpe":
                raise SettingsError(f"no vocabulary size: give one, for example {option('vocab_size', 32000)}")
            return
        least = specials + (256 if self.kind != "char" else 1 + (self.unknown == "unk"))
        if self.vocab_size < least:
            raise SettingsError(
                f"a vocabulary of {self.vocab_size:,} is too small for "
                f"{'the 256 bytes' if self.kind != 'char' else 'a character'} and {plural(specials, 'special token')}: "
                f"it must be at least {least}"
            )

    def counting_parts(self) -> Iterator[bytes]:
        """What the counts depend on, which the vocabulary size is not part of."""
        from ramlet import _native

        yield b"ramlet counts 1"
        yield _native.pattern_regex(self.pattern).encode()
        yield json.dumps([self.special_tokens, self.reading()]).encode()
