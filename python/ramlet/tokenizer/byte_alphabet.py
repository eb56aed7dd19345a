"""GPT-2's alphabet: a printable character for each byte, in which byte-level tokenizer files are written.

    >>> spell(b" the")
    'Ġthe'
    >>> unspell("Ġthe")
    b' the'

The 188 bytes that Latin-1 prints stand for themselves; the other 68 become U+0100, U+0101, ... in order.
"""

from __future__ import annotations

__all__ = ["BYTES_IN_ORDER", "spell", "unspell"]

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in frozenset(_PRINTABLE)]

BYTES_IN_ORDER = bytes(_PRINTABLE + _OTHERS)
"""All bytes in the order of their characters: the order of GPT-2's first 256 ids, and of ours."""

_TO_CHARACTER = {byte: 0x100 + at for at, byte in enumerate(_OTHERS)}
# Latin-1 characters outside the alphabet go where encoding to Latin-1 fails.
_TO_BYTE = {**dict.fromkeys(_OTHERS, 0xFFFF), **{character: byte for byte, character in _TO_CHARACTER.items()}}


def spell(token: bytes) -> str:
    """The token as files write it."""
    return token.decode("latin-1").translate(_TO_CHARACTER)


def unspell(text: str) -> bytes | None:
    """The bytes that a file means; None where a character is not of the alphabet."""
    try:
        return text.translate(_TO_BYTE).encode("latin-1")
    except UnicodeEncodeError:
        return None
