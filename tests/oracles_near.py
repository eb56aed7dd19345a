"""Near-duplicates, slow and obvious: the definitions of docs/design/near.md."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import xxhash

UNITS = 5

SPACELESS = [
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19DF),
    (0x1A20, 0x1AAF),
    (0x3005, 0x3007),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
]


def units(text: str) -> list[str]:
    """The folded words of a text; characters of scripts without spaces are words of their own."""
    found: list[str] = []
    word = ""
    for character in text:
        if unicodedata.category(character)[0] not in "LMN":
            found.append(word)
            word = ""
        elif any(first <= ord(character) <= last for first, last in SPACELESS):
            found += [word, character.lower()]
            word = ""
        else:
            word += character.lower()
    found.append(word)
    return [unit for unit in found if unit]


def shingles(text: str) -> set[str]:
    words = units(text)
    return {" ".join(words[at : at + UNITS]) for at in range(len(words) - UNITS + 1)}


def shingle_hashes(text: str) -> list[int]:
    return sorted({xxhash.xxh3_64_intdigest(shingle.encode()) for shingle in shingles(text)})


def similarity(one: set[str], other: set[str]) -> float:
    """Jaccard similarity; that of two empty sets is 0: they are not compared."""
    return len(one & other) / len(one | other) if one and other else 0.0


def kept(texts: Sequence[str], threshold: float) -> list[int]:
    """What is kept if every pair is compared: each document without a similar one among those kept before it."""
    sets = [shingles(text) for text in texts]
    found: list[int] = []
    for number, own in enumerate(sets):
        if not any(similarity(own, sets[before]) >= threshold for before in found):
            found.append(number)
    return found
