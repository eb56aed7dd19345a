"""vocab.json and merges.txt: token -> id, and one merge a line in order of rank, in GPT-2's alphabet.

The two files name neither a pattern nor special tokens. By convention the pattern is GPT-2's (a reader
that knows better gives another), and a token that is neither a byte nor made by a merge is special.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quoted  # what json.dumps does with a str, without its set-up
from pathlib import Path
from typing import Any

from ramlet.errors import TokenizerError
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.small_files import TOKENIZER, read_json, read_text
from ramlet.tokenizer.byte_alphabet import spell, unspell
from ramlet.tokenizer.model import Merge, TokenizerModel

__all__ = [
    "check_gaps",
    "parse_merges",
    "parse_vocab",
    "read",
    "spelled_tokens",
    "write",
    "write_merges",
    "write_vocab",
]

MOST_FREE = 1 << 18
"""Ids that no token has; published tokenizers leave some thousand free."""


def read(vocab: Path, merges: Path, pattern: str | None = None) -> TokenizerModel:
    """The tokenizer of the two files."""
    spelled = read_json(vocab, TokenizerError, TOKENIZER)
    try:
        ids = parse_vocab(spelled)
        lines = (line.rstrip("\r\n") for line in io.StringIO(read_text(merges, TokenizerError, TOKENIZER)))
        learned = parse_merges([line for line in lines if line and not line.startswith("#version")], ids)
    except TokenizerError as error:
        raise TokenizerError(f"{vocab} and {merges.name} cannot be used: {error}") from None
    reached = {made for _, _, made in learned}
    tokens: list[bytes | None] = [None] * (max(ids.values(), default=-1) + 1)
    specials = {}
    for name, number in ids.items():
        token = unspell(name)
        if token is not None and (len(token) == 1 or number in reached):
            tokens[number] = token
        else:
            specials[name] = number
    while tokens and tokens[-1] is None:
        tokens.pop()
    return TokenizerModel(tokens, learned, pattern or "gpt2", specials)


def parse_vocab(spelled: Any) -> dict[str, int]:
    """A vocabulary as JSON gives it, checked."""
    if not isinstance(spelled, dict):
        raise TokenizerError(f"its vocabulary is a {type(spelled).__name__}, not an object of tokens and ids")
    owners: dict[int, str] = {}
    for name, number in spelled.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 24:
            raise TokenizerError(f"the id of the token {name!r} is {number!r}, not a number below 16,777,216")
        if owners.setdefault(number, name) != name:
            raise TokenizerError(f"the tokens {owners[number]!r} and {name!r} have the same id {number}")
    check_gaps(owners)
    return spelled


def check_gaps(owners: Mapping[int, object]) -> None:
    """Every id up to the last takes memory, whether there is a token for it or not."""
    if owners and max(owners) > 4 * len(owners) + MOST_FREE:
        raise TokenizerError(f"its largest id is {max(owners):,}, far beyond its {len(owners):,} tokens: it is damaged")


def parse_merges(pairs: Any, ids: dict[str, int]) -> list[Merge]:
    """Merges, each `"left right"` or `["left", "right"]`, as ids."""
    if not isinstance(pairs, list):
        raise TokenizerError(f"its merges are a {type(pairs).__name__}, not a list")
    learned = []
    for at, pair in enumerate(pairs, 1):
        parts = pair.split(" ") if isinstance(pair, str) else pair
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise TokenizerError(f"merge {at} is {pair!r}, not a pair of tokens")
        left, right = parts
        for token in (left, right, left + right):
            if token not in ids:
                raise TokenizerError(f"merge {at}, {left!r} + {right!r}, names {token!r}, which the vocabulary lacks")
        learned.append((ids[left], ids[right], ids[left + right]))
    return learned


def write_vocab(entries: Iterable[tuple[str, int]], put: Any) -> None:
    """The vocabulary as a JSON object, one token at a time: the whole would double what it takes in memory."""
    put("{")
    for at, (name, number) in enumerate(entries):
        put(f"{',' if at else ''}\n      {quoted(name)}: {number}")
    put("\n    }")


def spelled_tokens(model: TokenizerModel) -> list[str]:
    """Every token as files write it, by its id: merges name each a few times over."""
    return ["" if token is None else spell(token) for token in model.tokens]


def write_merges(spelled: list[str], merges: list[Merge]) -> Iterable[str]:
    """The merges as lines."""
    return (f"{spelled[left]} {spelled[right]}" for left, right, _ in merges)


def write(model: TokenizerModel, folder: str | os.PathLike[str]) -> None:
    """vocab.json and merges.txt in the folder."""
    _check(model)
    merges, _ = model.settled
    os.makedirs(folder, exist_ok=True)
    spelled = spelled_tokens(model)
    entries = [(spelled[number], number) for number, token in enumerate(model.tokens) if token is not None]
    entries += sorted(model.specials.items(), key=lambda item: item[1])
    with replacing(Path(folder) / "merges.txt") as file:
        file.write("#version: 0.2\n")
        file.writelines(line + "\n" for line in write_merges(spelled, merges))
    with replacing(Path(folder) / "vocab.json") as file:
        write_vocab(entries, file.write)
        file.write("\n")


def _check(model: TokenizerModel) -> None:
    what = ""
    if model.characters:
        what = "a character tokenizer"
    elif model.nfc or model.added:
        what = "a tokenizer that normalizes text or has added tokens"
    elif model.pattern != "gpt2":
        what = f"the pattern {model.pattern!r}, for they are read with GPT-2's"
    elif model.settled[1]:
        what = "tokens that no merge makes"
    if what:
        raise TokenizerError(f'vocab.json and merges.txt cannot hold {what}: save it with format="json"')
