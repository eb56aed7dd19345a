"""Standard input -> a file: it comes once, and the work goes over its inputs more than once."""

from __future__ import annotations

import sys
from typing import Any

from ramlet.errors import SourceError
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.shelf import Shelf

__all__ = ["StandardInput"]

CHUNK = 1 << 20
_SUFFIX = {"jsonl": ".jsonl", "parquet": ".parquet"}


class StandardInput:
    """Copied in every run, for no one can tell beforehand whether it is the same; its content tells afterwards."""

    size = None

    def __init__(self, reading: ReadSettings) -> None:
        self._name = "input" + _SUFFIX.get(reading.format or "", ".txt")

    def stage(self, shelf: Shelf) -> list[str]:
        # hashlib would load OpenSSL, 3.5 MB of RSS; Python's own BLAKE2 is there without it.
        try:
            from _blake2 import blake2b
        except ImportError:
            from hashlib import blake2b
        content = blake2b(digest_size=16)
        if sys.stdin is None or sys.stdin.closed:
            raise SourceError("there is no standard input to read: name a file instead of -")
        stream: Any = sys.stdin.buffer
        path = shelf.place("standard", self._name)
        with shelf.writing(path, content.hexdigest) as file:
            while True:
                try:
                    chunk = stream.read1(CHUNK)
                except OSError as error:
                    raise SourceError(f"cannot read standard input: {error.strerror}") from None
                if not chunk:
                    break
                content.update(chunk)
                file.write(chunk)
                shelf.tell(len(chunk))
        return [str(path)]
