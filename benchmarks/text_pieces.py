"""Splits a UTF-8 byte stream where the GPT-2 pattern always ends a piece: between an ASCII letter and a newline (or, on
request, a blank). Splitting there changes no piece, and so no count and no id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

BEFORE_NEWLINE = re.compile(rb"[A-Za-z](?=\n)")
BEFORE_BLANK = re.compile(rb"[A-Za-z](?=[ \n])")


def cut_stream(stream: BinaryIO, size: int, where: re.Pattern[bytes]) -> Iterator[bytes]:
    """Pieces of at most about `size` bytes; longer only if the text cannot be split there."""
    rest = b""
    while block := stream.read(size - len(rest) if len(rest) < size // 2 else size):
        text = rest + block
        cut = 0
        for reach in (4096, len(text)):
            for match in where.finditer(text, max(0, len(text) - reach)):
                cut = match.end()
            if cut:
                break
        if cut:
            yield text[:cut]
        rest = text[cut:]
    if rest:
        yield rest


def cut_documents(text: bytes, size: int, where: re.Pattern[bytes]) -> list[bytes]:
    """`text` as documents of slightly more than `size` bytes."""
    documents, start = [], 0
    while start < len(text):
        match = where.search(text, start + size)
        end = match.end() if match else len(text)
        documents.append(text[start:end])
        start = end
    return documents
