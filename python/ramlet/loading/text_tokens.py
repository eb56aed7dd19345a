"""Text files -> ids, as they are read: a chunk at a time, each with a place in the files to have it from again.

    files = TextFiles(["corpus/"], ReadSettings(), scratch)
    for chunk in token_chunks(files, tokenizer, end_id, cursor=None): ...

What is held is one block of text and its ids. A document that is longer goes on in the next chunk, with the ids that it
would have in one piece; only families of tokenizers that may decide at the end of a text what its beginning becomes
(HF's) get it in parts, of a million characters each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ramlet import _native
from ramlet.errors import SourceError
from ramlet.inputs import sources
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging_process import stage_in_subprocess
from ramlet.runtime.digest import digest
from ramlet.tokenizer.engines import NativeEngine
from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["BLOCK_BYTES", "Chunk", "TextFiles", "token_chunks"]

Ids = npt.NDArray[Any]

BLOCK_BYTES = 1 << 17
"""Of text. Not for the budget to decide: where long documents are cut must not depend on it."""
PART_CHARACTERS = 1_000_000


class TextFiles:
    """Inputs as files that can be read again and again."""

    def __init__(
        self, inputs: Iterable[str | os.PathLike[str]], reading: ReadSettings, folder: Path, window_bytes: int
    ) -> None:
        self.reading = reading
        self.folder = folder
        self.window_bytes = window_bytes
        self._local = stage_in_subprocess(inputs, folder / "staged", reading=reading)
        self.files = self.bytes = 0
        self.windowed = False
        """Some are packed in a way that takes up to `window_bytes` to unpack."""
        self.fingerprint = self._survey()

    def _sources(self) -> Iterator[sources.Source]:
        for source in sources.expand(self._local, format=self.reading.format):
            if source.size is None:
                raise SourceError(
                    f"{source.path} can be read once only, and is read again in every epoch: pipe it in, with - in "
                    "its place"
                )
            yield source

    def _survey(self) -> str:
        """Counts the files; returns a hash that moves when one of them or the way that they are read does."""
        settings = {each.name: getattr(self.reading, each.name) for each in fields(ReadSettings)}
        self.files = self.bytes = 0

        def parts() -> Iterator[bytes]:
            yield b"ramlet text 1" + json.dumps(settings, sort_keys=True).encode()
            staged = os.path.abspath(self.folder) + os.sep
            for source in self._sources():
                self.files += 1
                self.bytes += source.size or 0
                self.windowed = self.windowed or source.compression in ("zst", "xz")
                # What was staged is the same wherever that was.
                path = os.path.abspath(source.path).removeprefix(staged)
                yield os.fsencode(path) + f"\0{source.compression} {source.size} {source.modified}".encode()

        return digest(parts())

    def changed(self) -> bool:
        return self._survey() != self.fingerprint

    def reader(self, encoder: _native.Encoder | None, cursor: str | None) -> _native.Reader:
        return _native.Reader(
            (source.spec() for source in self._sources()),
            self.reading.reading(),
            encoder=encoder,
            block_bytes=BLOCK_BYTES,
            window_bytes=self.window_bytes,
            spill_dir=os.fspath(self.folder),
            position=cursor,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ids, and where they come from: behind the first `before` ids of the text at `cursor` (None: the beginning)."""

    cursor: str | None
    before: int
    ids: Ids


def token_chunks(
    files: TextFiles, tokenizer: Tokenizer, end_id: int | None, cursor: str | None, threads: int = 1
) -> Iterator[Chunk]:
    """All ids from the cursor on, which is one that a chunk had; the end id behind every document."""
    engine = tokenizer.engine
    if not isinstance(engine, NativeEngine):
        yield from _by_document(files, tokenizer, end_id, cursor, threads)
        return
    reader = files.reader(engine.encoder, cursor)
    while True:
        here = reader.position()
        batch = reader.next_batch()
        if batch is None:
            return
        ids, ends = tokenizer.encode_batch([text for text, _ in batch], threads)
        yield Chunk(here, 0, _with_ends(ids, ends[[ended for _, ended in batch]], end_id))


def _by_document(
    files: TextFiles, tokenizer: Tokenizer, end_id: int | None, cursor: str | None, threads: int
) -> Iterator[Chunk]:
    reader = files.reader(None, cursor)
    # Of the last place at which a document began: only from there on parts are cut the same way again.
    here, before, held = cursor, 0, ""
    while (batch := reader.next_batch()) is not None:
        parts: list[tuple[str, bool]] = []
        for text, ended in batch:
            held += text
            while len(held) > PART_CHARACTERS:
                part, held = _cut(held)
                parts.append((part, False))
            if ended:
                parts.append((held, True))
                held = ""
        if parts:
            ids, ends = tokenizer.encode_batch([text for text, _ in parts], threads)
            ids = _with_ends(ids, ends[[ended for _, ended in parts]], end_id)
            yield Chunk(here, before, ids)
            before += len(ids)
        if batch and batch[-1][1]:
            here, before = reader.position(), 0


def _cut(text: str) -> tuple[str, str]:
    """At the last line end or else blank in the second half of what a part may have, else at its end."""
    half = PART_CHARACTERS // 2
    at = max(text.rfind("\n", half, PART_CHARACTERS), 0) or max(text.rfind(" ", half, PART_CHARACTERS), 0)
    at = at + 1 if at else PART_CHARACTERS
    return text[:at], text[at:]


def _with_ends(ids: Ids, ends: Ids, end_id: int | None) -> Ids:
    if end_id is None or not len(ends):
        return ids
    return np.insert(ids, ends.astype(np.int64), end_id)
