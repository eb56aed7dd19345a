"""A tokenizer as a .gguf file describes it to llama.cpp.

    vocabulary_of(tokenizer_model, rows=300, end_id=299)

llama.cpp has a fixed set of tokenizers. Byte-level BPE is its `gpt2`, with the split pattern by name; bytes are the
same without merges; characters are its `llama` (SentencePiece) with tokens of one character, which never merge. For
anything else there is no kind, and a model is refused: it would see other ids than in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ramlet.errors import ModelError, option
from ramlet.tokenizer.byte_alphabet import spell
from ramlet.tokenizer.engines import HfEngine
from ramlet.tokenizer.files.vocab_merges import spelled_tokens, write_merges
from ramlet.tokenizer.model import TokenizerModel

PATTERN_NAMES = {"gpt2": "gpt-2", "cl100k": "dbrx", "llama3": "dbrx", "o200k": "gpt-4o", "qwen2": "qwen2"}
"""llama.cpp's names of the patterns; `dbrx` is llama3's pattern without a token at the start of every text."""
LOOKS_UP = {"dbrx": "llama-bpe"}
"""The same patterns, with pieces that are tokens looked up before merging (`ignore_merges`)."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""The types of tokens, as in gguf.TokenType."""
SPACE = "\u2581"
"""SentencePiece writes a space as this character."""
NEVER = b"\xff"
"""A byte that UTF-8 does not have."""


@dataclass(frozen=True)
class Vocabulary:
    """The entries `tokenizer.ggml.*` of a file."""

    kind: str
    pattern: str
    tokens: list[str]
    types: list[int]
    merges: list[str] | None
    """None if the kind has none."""
    end_id: int
    notes: list[str]
    """Where llama.cpp differs from ramlet."""


def pattern_name(model: TokenizerModel | HfEngine) -> str:
    """llama.cpp's name of the pattern of a byte-level BPE; refuses a tokenizer that is none, or has another pattern."""
    known = isinstance(model, TokenizerModel) and model.kind == "bpe"
    name = PATTERN_NAMES.get(model.pattern) if isinstance(model, TokenizerModel) and known else None
    if name is None:
        kind = "hf" if isinstance(model, HfEngine) else model.kind
        what = f"a {kind} tokenizer" if isinstance(model, HfEngine) or not known else f"the pattern {model.pattern}"
        raise ModelError(
            f"llama.cpp does not support {what}: only byte-level BPE with the patterns "
            f"{', '.join(PATTERN_NAMES)} can be converted; {option('to', 'hf')} has no such limit"
        )
    return name


def vocabulary_of(model: TokenizerModel | HfEngine, rows: int, end_id: int | None) -> Vocabulary:
    """For a model with this many rows in its embedding, at least one for each token."""
    if isinstance(model, TokenizerModel) and model.size > rows:
        raise ModelError(
            f"the tokenizer has {model.size:,} tokens, but the model only {rows:,}: give it the tokenizer that it was "
            "trained with"
        )
    if isinstance(model, TokenizerModel) and model.characters:
        return _characters(model, end_id)
    return _byte_level(model, end_id)


def _byte_level(model: TokenizerModel | HfEngine, end_id: int | None) -> Vocabulary:
    bytes_only = isinstance(model, TokenizerModel) and model.kind == "byte"
    name = PATTERN_NAMES["gpt2"] if bytes_only else pattern_name(model)
    assert isinstance(model, TokenizerModel)
    ranked, looks_up = model.ranked_merges
    if looks_up and not bytes_only:
        if name not in LOOKS_UP:
            raise ModelError(
                f"the tokenizer has tokens that no merge produces, which llama.cpp supports only with the pattern "
                f"llama3, not {model.pattern}: use {option('to', 'hf')}"
            )
        name = LOOKS_UP[name]
    spelled = spelled_tokens(model)
    # A file without merges cannot be opened: this one needs two bytes that never occur.
    merges = list(write_merges(spelled, ranked)) or [f"{spell(NEVER)} {spell(NEVER)}"]
    if end_id is None and NEVER in model.tokens:
        # Without one llama.cpp takes the id 11, an ordinary token.
        end_id = model.tokens.index(NEVER)
    notes = []
    if model.nfc:
        notes.append("llama.cpp does not normalize text: give it text in Unicode NFC")
    return _listed(model, "gpt2", name, spelled, merges, end_id, notes)


def _characters(model: TokenizerModel, end_id: int | None) -> Vocabulary:
    if SPACE.encode() in model.tokens:
        raise ModelError(
            f"llama.cpp writes a space as {SPACE} (U+2581), which is another character of this vocabulary: "
            f"use {option('to', 'hf')}"
        )
    spelled = ["" if token is None else token.decode().replace(" ", SPACE) for token in model.tokens]
    notes = ["llama.cpp refuses a prompt with a character that is not in the vocabulary"]
    return _listed(model, "llama", "default", spelled, None, end_id, notes)


def _listed(
    model: TokenizerModel,
    kind: str,
    pattern: str,
    spelled: list[str],
    merges: list[str] | None,
    end_id: int | None,
    notes: list[str],
) -> Vocabulary:
    if end_id is None:
        raise ModelError(
            "llama.cpp needs a token that ends a text, and the vocabulary has none: "
            f"train with {option('special_tokens', '<|endoftext|>')}, or use {option('to', 'hf')}"
        )
    tokens, types = zip(*_typed(model, spelled), strict=True)
    return Vocabulary(kind, pattern, list(tokens), list(types), merges, end_id, notes)


def _typed(model: TokenizerModel, spelled: list[str]) -> Iterator[tuple[str, int]]:
    """Every id's token and type."""
    kinds = dict.fromkeys(model.added.values(), USER_DEFINED) | dict.fromkeys(model.specials.values(), CONTROL)
    if model.unknown:
        kinds[model.unknown[1]] = UNKNOWN
    for number in range(model.size):
        if (name := model.named_tokens.get(number)) is not None:
            yield name, kinds[number]
        elif spelled[number]:
            yield spelled[number], NORMAL
        else:
            yield f"[PAD{number}]", UNUSED
