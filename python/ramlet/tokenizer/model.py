"""What a tokenizer is, independent of the file it was read from and the engine that runs it.

A byte-level BPE has tokens, merges in order of rank, the pattern that splits text into pieces, and tokens outside of
BPE: special ones, recognized only where the caller allows them, and added ones, recognized in any text. A byte
tokenizer has no merges, and its one piece is the whole text. A character tokenizer has one token per character and no
pieces at all.

Files define the same vocabulary in three ways, which give the same ids if all tokens can be reached by merging:

- ranked merges: the pair with the lowest rank first (tokenizer.json, merges.txt);
- `rank_by_id`: any pair whose bytes are a token, the lowest id first (a .tiktoken file);
- `ignore_merges`: a piece that is a token becomes that token, and only other pieces are merged.

`canonical_merges` turns the second into the first. Several pairs can make the same token, but only one of them ever
occurs: the bytes of the token merge as if they stood alone, and that always ends with the same pair. So one merge per
token is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import eq
from typing import Any, AnyStr, overload

from ramlet.errors import TokenizerError
from ramlet.runtime.digest import digest
from ramlet.tokenizer.byte_alphabet import BYTES_IN_ORDER, unspell
from ramlet.tokenizer.settings import LARGEST

PATTERNS = ("gpt2", "cl100k", "o200k", "llama3", "qwen2")
"""The named patterns; the byte tokenizer has `whole`, one piece for the whole text."""

UNICODE = 0x110000
CHARACTER_BYTES = 20
"""Memory per distinct character while a vocabulary of characters is built: their order, the string of all of them in
UTF-8 and in Python, the encoder's tables."""

Merge = tuple[int, int, int]
"""Left id, right id, merged id."""


class CharacterTokens(Sequence[bytes | None]):
    """One token per character, in order; created on access, because all of Unicode as objects takes 60 MB."""

    def __init__(self, characters: str) -> None:
        self.characters = characters

    def __len__(self) -> int:
        return len(self.characters)

    @overload
    def __getitem__(self, at: int) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice) -> CharacterTokens: ...
    def __getitem__(self, at: int | slice) -> bytes | CharacterTokens | None:
        return CharacterTokens(self.characters[at]) if isinstance(at, slice) else self.characters[at].encode()

    def __iter__(self) -> Iterator[bytes | None]:
        return (character.encode() for character in self.characters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class TokenizerModel:
    """Everything that decides the ids of a text."""

    tokens: Sequence[bytes | None]
    """The bytes of each ordinary token by id; None for special and added tokens and for unused ids."""

    merges: list[Merge] = field(default_factory=list)
    """In order of rank; empty with `rank_by_id`, where they follow from the tokens."""

    pattern: str = "gpt2"
    """A name or a regex."""

    specials: dict[str, int] = field(default_factory=dict)
    """Recognized in text only where the caller allows it."""

    added: dict[str, int] = field(default_factory=dict)
    """Recognized in any text."""

    characters: bool = False
    """One token per character, instead of byte-level BPE."""

    unknown: tuple[str, int] | None = None
    """The token for any other character; without it, other characters are an error."""

    rank_by_id: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    """Text is normalized to Unicode NFC first."""

    frame: dict[str, Any] | None = None
    """The tokenizer.json it was read from, without vocabulary and merges, so that saving keeps the rest."""

    kept_in_vocab: frozenset[str] = frozenset()
    """The special and added tokens that this file also lists in its vocabulary."""

    @cached_property
    def size(self) -> int:
        """One more than the largest id: the rows of an embedding."""
        return max(len(self.tokens), *(number + 1 for number in self.named_tokens), 0)

    @cached_property
    def kind(self) -> str:
        """`bpe`, `byte` or `char`."""
        if self.characters:
            return "char"
        return "byte" if self.pattern == "whole" and not self.merges and not self.rank_by_id else "bpe"

    @cached_property
    def named_tokens(self) -> dict[int, str]:
        """The special tokens, the added tokens and the unknown token, by id."""
        named = {number: name for name, number in (*self.specials.items(), *self.added.items())}
        if self.unknown:
            named[self.unknown[1]] = self.unknown[0]
        return named

    def token_bytes(self) -> list[bytes | None]:
        """The bytes of every id, special and added tokens included."""
        every = [*self.tokens, *[None] * (self.size - len(self.tokens))]
        for number, name in self.named_tokens.items():
            if every[number] is None:
                every[number] = name.encode()
        return every

    @cached_property
    def ranked_merges(self) -> tuple[list[Merge], bool]:
        """Merges with one pair per token, and whether pieces that are tokens must still be looked up first."""
        if not self.rank_by_id and not self.ignore_merges:
            return self.merges, False
        merges, complete = canonical_merges(self.tokens)
        if self.rank_by_id:
            return merges, not complete
        # The merges of the file give the same ids if they are in the order of ids and include the canonical ones:
        # the other pairs never occur.
        ranks = {(left, right): made for left, right, made in self.merges}
        in_order = all(earlier[2] <= later[2] for earlier, later in pairwise(self.merges))
        same = in_order and complete and all(ranks.get((left, right)) == made for left, right, made in merges)
        return (merges, False) if same else (self.merges, True)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what decides the ids; the same in every file format."""
        return digest(self._hashed_parts())

    def _hashed_parts(self) -> Iterator[bytes]:
        from ramlet import _native

        merges, ignore_merges = self.ranked_merges
        yield b"ramlet tokenizer 1"
        yield f"{self.characters} {self.nfc} {ignore_merges} {self.unknown}".encode()
        yield b"" if self.characters else _native.pattern_regex(self.pattern).encode()
        for number, token in enumerate(self.tokens):
            if token is not None:
                yield b"%d:" % number + token
        for left, right, made in merges:
            yield b"%d %d %d" % (left, right, made)
        for mark, named in (("special", self.specials), ("added", self.added)):
            for name, number in sorted(named.items(), key=lambda item: item[1]):
                yield f"{mark} {number}:{name}".encode()


def byte_model() -> TokenizerModel:
    """Nothing is learned: the id of a byte is its value."""
    return TokenizerModel([bytes([byte]) for byte in range(256)], pattern="whole")


def bytes_in_order() -> list[bytes | None]:
    """The first 256 tokens of a trained tokenizer."""
    return [bytes([byte]) for byte in BYTES_IN_ORDER]


def place_token(tokens: list[bytes | None], number: int, token: bytes) -> None:
    """Sets the token of an id; the list grows up to it, with None for unused ids."""
    tokens += [None] * (number + 1 - len(tokens))
    tokens[number] = token


def merges_by_id(pairs: Iterable[tuple[AnyStr, AnyStr]], ids: Mapping[AnyStr, int]) -> list[Merge]:
    """Merges given as pairs of tokens, in order."""
    merges = []
    for at, (left, right) in enumerate(pairs, 1):
        for token in (left, right, left + right):
            if token not in ids:
                raise TokenizerError(
                    f"merge {at}, {left!r} + {right!r}, needs {token!r}, which is not in the vocabulary"
                )
        merges.append((ids[left], ids[right], ids[left + right]))
    return merges


def all_pairs(tokens: Sequence[bytes | None]) -> list[Merge]:
    """Every pair of tokens whose bytes are a token."""
    ids = {token: number for number, token in enumerate(tokens) if token is not None}
    found = []
    for token, made in ids.items():
        for cut in range(1, len(token)):
            left = ids.get(token[:cut])
            if left is not None and (right := ids.get(token[cut:])) is not None:
                found.append((left, right, made))
    return found


def canonical_merges(tokens: Sequence[bytes | None]) -> tuple[list[Merge], bool]:
    """The one pair that each token is merged from if the lowest id merges first, in order of the ids.

    Also whether every token can be reached this way. Takes about 15 us per token.
    """
    ids = {token: number for number, token in enumerate(tokens) if token is not None}
    merges = []
    complete = True
    for token, made in sorted(ids.items(), key=lambda item: item[1]):
        if len(token) < 2:
            continue
        parts = [token[at : at + 1] for at in range(len(token))]
        while len(parts) > 2:
            ranked = [ids.get(left + right, -1) for left, right in pairwise(parts)]
            best = min((rank for rank in ranked if rank >= 0), default=-1)
            if best < 0:
                break
            at = ranked.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2 and parts[0] in ids and parts[1] in ids:
            merges.append((ids[parts[0]], ids[parts[1]], made))
        else:
            complete = False
    return merges, complete


LARGEST_ID = LARGEST - 1


def check_ids(ids: Iterable[Any], what: str) -> None:
    """Checks that these, of which a caller says `what` they are, can be ids."""
    for number in ids:
        # NumPy's integers are whole numbers too.
        if not hasattr(number, "__index__") or isinstance(number, bool) or not 0 <= number <= LARGEST_ID:
            raise TokenizerError(f"the id of {what} is {number!r}, not a whole number from 0 to {LARGEST_ID:,}")


def check_names(names: Sequence[str], tokens: Sequence[bytes | None]) -> None:
    """Checks that special tokens differ from each other and, as spelled in files, from ordinary tokens."""
    ordinary = set(tokens)
    seen: set[str] = set()
    for name in names:
        if not name:
            raise TokenizerError("a special token is empty: remove it")
        if name in seen:
            raise TokenizerError(f"the special token {name!r} is given twice: remove one")
        seen.add(name)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TokenizerError(f"the special token {name!r} has a lone surrogate: it is not valid text") from None
        spelled = unspell(name)
        # With a character of the alphabet above Latin-1, it spells a token that training could still learn.
        if spelled is not None and (spelled in ordinary or any(character > "\xff" for character in name)):
            raise TokenizerError(
                f"the special token {name!r} is how tokenizer.json spells the ordinary token {spelled!r}: "
                f"choose a name like <|{name}|>"
            )
