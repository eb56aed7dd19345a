"""vocab.json and merges.txt: token -> id, and one merge per line in order of rank, in GPT-2's byte alphabet.

The two files have neither a pattern nor special tokens. By convention the pattern is GPT-2's unless the caller gives
another, and a token that is neither a byte nor the result of a merge is special.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring as quoted  # what json.dumps does with a str, without its setup
from pathlib import Path
from typing import Any

from ramlet.errors import TokenizerError
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.small_files import TOKENIZER, read_json, read_text
from ramlet.tokenizer.byte_alphabet import spell, unspell
from ramlet.tokenizer.model import Merge, TokenizerModel, merges_by_id, place_token

MOST_UNUSED = 1 << 18
"""Unused ids; published tokenizers have a few thousand."""


def read(vocab: Path, merges: Path, pattern: str | None = None) -> TokenizerModel:
    spelled = read_json(vocab, TokenizerError, TOKENIZER)
    try:
        ids = parse_vocab(spelled)
        lines = (line.rstrip("\r\n") for line in io.StringIO(read_text(merges, TokenizerError, TOKENIZER)))
        learned = parse_merges([line for line in lines if line and not line.startswith("#version")], ids)
    except TokenizerError as error:
        raise TokenizerError(f"{vocab} and {merges.name} cannot be used: {error}") from None
    reached = {made for _, _, made in learned}
    tokens: list[bytes | None] = []
    specials = {}
    for name, number in ids.items():
        token = unspell(name)
        if token is not None and (len(token) == 1 or number in reached):
            place_token(tokens, number, token)
        else:
            specials[name] = number
    return TokenizerModel(tokens, learned, pattern or "gpt2", specials)


def parse_vocab(spelled: Any) -> dict[str, int]:
    """A vocabulary as parsed from JSON, checked."""
    if not isinstance(spelled, dict):
        raise TokenizerError(f"its vocabulary is a {type(spelled).__name__}, not an object of tokens and ids")
    owners: dict[int, str] = {}
    for name, number in spelled.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 24:
            raise TokenizerError(f"the id of the token {name!r} is {number!r}, not a whole number below 16,777,216")
        if owners.setdefault(number, name) != name:
            raise TokenizerError(f"the tokens {owners[number]!r} and {name!r} have the same id {number}")
    check_gaps(owners)
    return spelled


def check_gaps(owners: Mapping[int, object]) -> None:
    """Every id up to the largest takes memory, whether it has a token or not."""
    if owners and max(owners) > 4 * len(owners) + MOST_UNUSED:
        raise TokenizerError(f"its largest id is {max(owners):,}, far beyond its {len(owners):,} tokens: it is damaged")


def parse_merges(pairs: Any, ids: dict[str, int]) -> list[Merge]:
    """Merges, each `"left right"` or `["left", "right"]`, as ids."""
    if not isinstance(pairs, list):
        raise TokenizerError(f"its merges are a {type(pairs).__name__}, not a list")

    def checked() -> Iterator[tuple[str, str]]:
        for at, pair in enumerate(pairs, 1):
            parts = pair.split(" ") if isinstance(pair, str) else pair
            if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
                raise TokenizerError(f"merge {at} is {pair!r}, not a pair of tokens")
            yield parts[0], parts[1]

    return merges_by_id(checked(), ids)


def write_vocab(entries: Iterable[tuple[str, int]], put: Any) -> None:
    """The vocabulary as a JSON object, token by token: at once it would take twice the memory."""
    put("{")
    for at, (name, number) in enumerate(entries):
        put(f"{',' if at else ''}\n      {quoted(name)}: {number}")
    put("\n    }")


def spelled_tokens(model: TokenizerModel) -> list[str]:
    """Every token as files write it, by id: merges repeat each of them several times."""
    return ["" if token is None else spell(token) for token in model.tokens]


def write_merges(spelled: list[str], merges: list[Merge]) -> Iterable[str]:
    return (f"{spelled[left]} {spelled[right]}" for left, right, _ in merges)


def write(model: TokenizerModel, folder: str | os.PathLike[str]) -> None:
    check_plain_bpe(model, "vocab.json and merges.txt")
    merges, needs_lookup = model.ranked_merges
    if model.pattern != "gpt2":
        raise not_representable("vocab.json and merges.txt", f"the pattern {model.pattern!r}, only GPT-2's")
    if needs_lookup:
        raise not_representable("vocab.json and merges.txt", "tokens that no merge produces")
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


def check_plain_bpe(model: TokenizerModel, form: str) -> None:
    """Refuses what only tokenizer.json can represent."""
    if model.characters:
        raise not_representable(form, "a character tokenizer")
    if model.nfc or model.added:
        raise not_representable(form, "a tokenizer that normalizes text or has added tokens")


def not_representable(form: str, what: str) -> TokenizerError:
    return TokenizerError(f'{form} cannot represent {what}: save it with format="json"')
