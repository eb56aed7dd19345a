"""GPT-2's byte alphabet: byte-level tokenizer files write each byte as one printable character.

    >>> spell(b" the")
    'Ġthe'
    >>> unspell("Ġthe")
    b' the'

The 188 bytes that are printable in Latin-1 stand for themselves; the other 68 become U+0100, U+0101, ... in order.
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in frozenset(_PRINTABLE)]

BYTES_IN_ORDER = bytes(_PRINTABLE + _OTHERS)
"""All bytes, ordered by their characters: the order of the first 256 ids in GPT-2 and in ramlet."""

_TO_CHARACTER = {byte: 0x100 + at for at, byte in enumerate(_OTHERS)}
# Latin-1 characters that are not in the alphabet map to a character that makes encoding to Latin-1 fail.
_TO_BYTE = {**dict.fromkeys(_OTHERS, 0xFFFF), **{character: byte for byte, character in _TO_CHARACTER.items()}}


def spell(token: bytes) -> str:
    """The token as it is written in files."""
    return token.decode("latin-1").translate(_TO_CHARACTER)


def unspell(text: str) -> bytes | None:
    """The bytes that the characters of a file stand for; None if one is not in the alphabet."""
    try:
        return text.translate(_TO_BYTE).encode("latin-1")
    except UnicodeEncodeError:
        return None
