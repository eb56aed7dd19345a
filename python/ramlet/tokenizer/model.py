"""What a tokenizer is, apart from any file it was read from and any engine that runs it.

A byte-level BPE is its tokens, its merges in order of rank, the pattern that cuts text into pieces, and
the tokens that stand apart from it: special ones, found in text only where the caller allows them, and
added ones, found in any text. A byte tokenizer is one without merges whose piece is the whole text. A
character tokenizer has one token a character and no pieces at all.

Three readings of the same vocabulary occur in files, and encode the same wherever the tokens can all be
reached by merging:

- ranked merges: the pair with the lowest rank first (tokenizer.json, merges.txt);
- `rank_by_id`: any pair whose bytes are a token, the lowest id first (a .tiktoken file);
- `ignore_merges`: a piece that is a token is that token, and only other pieces are merged.

`canonical_merges` turns the second into the first. Of all the pairs that make a token only one is ever
met: inside the token's bytes merging goes on as it would if they stood alone, and that way ends in
one pair. So one merge a token says it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import eq
from typing import Any, overload

from ramlet.errors import TokenizerError
from ramlet.runtime.digest import digest
from ramlet.tokenizer.byte_alphabet import BYTES_IN_ORDER, unspell

__all__ = [
    "CHARACTER_BYTES",
    "PATTERNS",
    "UNICODE",
    "CharacterTokens",
    "Merge",
    "TokenizerModel",
    "all_pairs",
    "byte_model",
    "bytes_in_order",
    "canonical_merges",
    "check_names",
]

PATTERNS = ("gpt2", "cl100k", "o200k", "llama3", "qwen2")
"""The patterns with a name; `whole`, one piece for the whole text, is the byte tokenizer's."""

UNICODE = 0x110000
CHARACTER_BYTES = 20
"""For each distinct character of a text that a vocabulary is made of: their order, the text of them in UTF-8 and as
Python has it, the encoder's tables."""

Merge = tuple[int, int, int]
"""Left id, right id, the id that they become."""


class CharacterTokens(Sequence[bytes | None]):
    """A token a character, in order; made as they are asked for, because as objects all of Unicode takes 60 MB."""

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
    """All that decides the ids of a text."""

    tokens: Sequence[bytes | None]
    """The bytes of each ordinary token by its id; None where there is none, or a special or added one."""

    merges: list[Merge] = field(default_factory=list)
    """In order of rank; empty with `rank_by_id`, where the tokens say it all."""

    pattern: str = "gpt2"
    """A name or a regex."""

    specials: dict[str, int] = field(default_factory=dict)
    """Found in text only where the caller allows it."""

    added: dict[str, int] = field(default_factory=dict)
    """Found in any text."""

    characters: bool = False
    """One token a character, instead of byte-level BPE."""

    unknown: tuple[str, int] | None = None
    """Stands for any other character; without it they are an error."""

    rank_by_id: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    """Text is brought into Unicode's form NFC first."""

    frame: dict[str, Any] | None = None
    """The tokenizer.json it came from, without vocabulary and merges, so that saving keeps the rest."""

    kept_in_vocab: frozenset[str] = frozenset()
    """The special and added tokens that this file also lists among the ordinary ones."""

    @cached_property
    def size(self) -> int:
        """One more than the largest id: the rows of an embedding."""
        apart = [*self.specials.values(), *self.added.values(), *([self.unknown[1]] if self.unknown else [])]
        return max(len(self.tokens), *(number + 1 for number in apart), 0)

    @cached_property
    def kind(self) -> str:
        """`bpe`, `byte` or `char`."""
        if self.characters:
            return "char"
        return "byte" if self.pattern == "whole" and not self.merges and not self.rank_by_id else "bpe"

    @cached_property
    def apart(self) -> dict[int, str]:
        """Special and added tokens and the unknown one, by id."""
        named = {number: name for name, number in (*self.specials.items(), *self.added.items())}
        if self.unknown:
            named[self.unknown[1]] = self.unknown[0]
        return named

    def token_bytes(self) -> list[bytes | None]:
        """The bytes of every id, special and added tokens included."""
        every = [*self.tokens, *[None] * (self.size - len(self.tokens))]
        for number, name in self.apart.items():
            if every[number] is None:
                every[number] = name.encode()
        return every

    @cached_property
    def settled(self) -> tuple[list[Merge], bool]:
        """Merges of one pair a token, and whether pieces that are tokens must still be looked up first."""
        if not self.rank_by_id and not self.ignore_merges:
            return self.merges, False
        merges, complete = canonical_merges(self.tokens)
        if self.rank_by_id:
            return merges, not complete
        # The file's own merges say the same when the canonical ones are among them, in the order of ids:
        # pairs beside them are never met.
        ranks = {(left, right): made for left, right, made in self.merges}
        in_order = all(earlier[2] <= later[2] for earlier, later in pairwise(self.merges))
        same = in_order and complete and all(ranks.get((left, right)) == made for left, right, made in merges)
        return (merges, False) if same else (self.merges, True)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what decides the ids; the same however the tokenizer was stored."""
        merges, ignore_merges = self.settled
        return digest(self._parts(merges, ignore_merges))

    def _parts(self, merges: list[Merge], ignore_merges: bool) -> Iterator[bytes]:
        from ramlet import _native

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
    """Nothing learned: the id of a byte is its value."""
    return TokenizerModel([bytes([byte]) for byte in range(256)], pattern="whole")


def bytes_in_order() -> list[bytes | None]:
    """The first 256 tokens of a trained tokenizer."""
    return [bytes([byte]) for byte in BYTES_IN_ORDER]


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
    """The one pair that each token is made of when the lowest id goes first, in order of the ids.

    Also whether every token can be reached so. About 15 us a token.
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


def check_names(names: Sequence[str], tokens: Sequence[bytes | None]) -> None:
    """Special tokens must be told apart from each other and, as files spell them, from ordinary ones."""
    ordinary = set(tokens)
    seen: set[str] = set()
    for name in names:
        if not name:
            raise TokenizerError("a special token is empty: leave it out")
        if name in seen:
            raise TokenizerError(f"the special token {name!r} is given twice: leave one out")
        seen.add(name)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TokenizerError(f"the special token {name!r} holds a lone surrogate: it is no valid text") from None
        meant = unspell(name)
        # A character above Latin-1 that the alphabet has makes it the spelling of a token that may yet be learned.
        if meant is not None and (meant in ordinary or any(character > "\xff" for character in name)):
            raise TokenizerError(
                f"the special token {name!r} is how tokenizer.json spells the ordinary token {meant!r}: "
                f"choose a name like <|{name}|>"
            )
